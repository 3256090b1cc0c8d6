from dataclasses import dataclass

from wima.algorithms.base import Algorithm, Local, State
from wima.core.errors import check_range
from wima.core.vector import Vector


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term mu/2 * |y - w|^2 that keeps clients close to w.

        y <- y - lr * (g_i(y) + mu * (y - w))

    Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), Algorithm 2, without
    its inexactness and stragglers.  Some implementations have mu/2 or 2*mu instead of mu.
    """

    mu: float = 0.01  # weight of the proximal term

    def __post_init__(self) -> None:
        check_range("FedProx.mu", self.mu, least=0)

    def local(self, w: Vector, server: State, client: State) -> Local:
        return Local(w, prox=self.mu)
