"""An algorithm: hyper-parameters and pure functions, each of which defaults to FedAvg's.

One round, as every engine runs it:

    server  = observe(mean of the full gradients at w, server)       if full_gradient = "cohort"
    each client i of the cohort:
        problem = local(w, server, client_i)
        visit   = SGD on problem
        extra_i, client_i = client_finish(visit, server, client_i)
    delta, extra = means of visit.delta and extra_i over the cohort
    pseudo_gradient, server = server_update(w, delta, extra, server, fraction)
    w = w - ServerOpt(pseudo_gradient)
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from wima.core.vector import Vector

State: TypeAlias = Any  # a tuple of vectors and numbers; () if there is none
Extra: TypeAlias = Any  # the mean of the vectors that clients sent besides delta; None if none
Asked: TypeAlias = Any  # a vector if the algorithm requests it, else None
FullGradient = Literal["none", "own", "cohort"]
ExtraMean = Literal["uniform", "weighted"]


class Local(NamedTuple):
    """One client's problem: SGD from `start` on

        scale * f_i(w) + prox/2 * |w - start|^2 + <shift, w>

    With `anchored`, the gradient of f_i is replaced by g(w) - g(start) on the same mini-batch.
    """

    start: Vector
    scale: float = 1.0
    prox: float = 0.0
    shift: Vector | float = 0.0
    anchored: bool = False


class Visit(NamedTuple):
    """The outcome of one client's local training."""

    start: Vector
    end: Vector
    steps: int
    lr: float
    t: int
    gradient: Asked = None  # the client's full-batch gradient at w
    path_gradient: Asked = None  # the mean of its mini-batch gradients along the way

    @property
    def delta(self) -> Vector:
        """The client's pseudo-gradient; the server subtracts it."""
        return self.start - self.end


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """FedAvg: clients run SGD from w; the server steps with the mean of their deltas.

    Subclasses define only how they differ.  Hooks are pure: they do not modify their arguments, and
    return new state.

    Examples:
        >>> from dataclasses import dataclass
        >>> import wima
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Cautious(wima.Algorithm):
        ...     gain: float = 0.5  # of the server's step
        ...     def server_update(self, w, delta, extra, server, fraction):
        ...         return self.gain * delta, server
        >>> wima.check_algorithm(Cautious())
    """

    @property
    def full_gradient(self) -> FullGradient:
        """Full-batch gradients at w: none; own: one per visit; cohort: their mean, in advance."""
        return "none"

    @property
    def path_gradient(self) -> bool:
        """Whether a visit returns the mean of its mini-batch gradients, before any correction."""
        return False

    @property
    def own_server_rule(self) -> bool:
        """Whether it has its own server step; then only plain SGD with rate 1 makes sense."""
        return False

    @property
    def extra_mean(self) -> ExtraMean:
        """How `extra` is averaged over the cohort: uniform, or weighted like delta."""
        return "uniform"

    def init(self, w: Vector) -> State:
        """The server's memory besides w."""
        return ()

    def client_init(self, w: Vector) -> State:
        """The memory of a client before its first visit."""
        return ()

    def observe(self, gradient: Vector, server: State) -> State:
        """Use the cohort's mean full gradient, before the clients train."""
        return server

    def local(self, w: Vector, server: State, client: State) -> Local:
        """The problem sent to a client."""
        return Local(w)

    def client_finish(
        self, visit: Visit, server: State, client: State
    ) -> tuple[Vector | None, State]:
        """What a client sends besides its delta, and its memory after the visit."""
        return None, client

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: State, fraction: float
    ) -> tuple[Vector, State]:
        """The pseudo-gradient to step with, and the new memory; fraction = cohort / all clients."""
        return delta, server

    def served(self, w: Vector, server: State) -> Vector:
        """The model to evaluate and average: w."""
        return w
