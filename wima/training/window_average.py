"""The window average in any training loop."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from wima.core import errors
from wima.core.errors import RunError, UsageError, check
from wima.storage.manifests import read_manifest, write_manifest
from wima.storage.segments import Segments
from wima.training.past import TensorRing, TensorSums

FORMAT = 1
MANIFEST = "window.json"


class WindowAverage:
    """The mean of the last `window` states of a model; training is never changed.

        mean = (1/W) * sum of the last W models          (Eq. 4 of the paper)

    Before W updates it is the mean of the models so far, and before the first one the model itself.
    Write a step as w <- w - u.  Then the mean is also the model before the window, followed by the
    same steps with decreasing weights, w - sum over j = 0 ... W - 1 of (W - j)/W * u_j: a learning
    rate that decays (Eq. 7).

    An update only copies the model into a ring buffer.  The mean is computed on demand, in float64,
    over any window up to the largest.

    window: a number, or several; or "auto", which chooses the window at every update by the
    model's gradients, and keeps a few sums instead of past models; see `AutoWindow`.
    every: use only each k-th update.
    parts: names or patterns of what is averaged (`"head.*"`; the name of a module selects all its
    tensors); by default, all trainable parameters and, with use_buffers, all floating-point
    buffers.  Everything else is as in the model.
    dtype: the dtype in which past models are stored, such as torch.bfloat16.
    folder: store them in a file there instead of in memory.
    device: where they are stored.
    """

    def __init__(
        self,
        model: nn.Module,
        window: int | Literal["auto"] | Sequence[int] = 100,
        *,
        every: int = 1,
        parts: str | Sequence[str] | None = None,
        use_buffers: bool = True,
        dtype: torch.dtype | None = None,
        folder: str | PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        shape: str = errors.EQUAL,  # removed
    ) -> None:
        self.windows = () if window == "auto" else check_windows(window)
        self.every = every
        errors.check_count("every", every)
        errors.check_equal_weights("shape", shape)
        self.model, self._module = model, _unwrap(model)
        self._owners = _choose(self._module, parts, use_buffers)
        self._past: TensorRing | TensorSums
        if self.windows:
            kept: dict[str, Any] = {"dtype": dtype, "folder": Path(folder) if folder else None}
            self._past = TensorRing(self._tensors(), self.windows[-1], device=device, **kept)
        else:
            extra = [name for name, value in (("dtype", dtype), ("folder", folder)) if value]
            memory = "window='auto' keeps float64 sums in memory instead of models"
            check(not extra, f"{memory}: omit {', '.join(extra)}.")
            self._past = TensorSums(self._tensors(), device)
        unnamed = self._module.named_parameters() if parts is None else ()
        self._frozen = [(name, p) for name, p in unnamed if name not in self._owners]
        self.calls = 0  # number of calls of update
        self._depth = 0  # of nested applied()
        self._store: Segments | None = None

    @property
    def names(self) -> list[str]:
        """The names of what is averaged, as in `named_parameters` and `named_buffers`."""
        return list(self._owners)

    @property
    def n_averaged(self) -> int:
        """How many models are currently averaged, in the largest or the chosen window."""
        return self._past.held

    def update(self) -> None:
        """Add the current model; call it after every step of the optimizer.

        With window="auto", call it before the gradients are zeroed; they are those of the previous
        model.
        """
        check(
            self._depth == 0,
            "update() inside applied() would average the average; call it outside.",
        )
        for name, parameter in self._frozen:
            check(
                not parameter.requires_grad,
                f"{name} was frozen and is now trained: create the WindowAverage afterwards, or "
                'choose what to average (parts="*" is everything).',
            )
        tensors = self._tensors()
        if isinstance(self._past, TensorSums) and self.calls % self.every == 0:
            self._past.use_gradients(tensors)  # these gradients are those of the last added model
        self.calls += 1
        if self.calls % self.every == 0:
            self._past.push(tensors)

    def tensors(self, window: int | None = None) -> dict[str, Tensor]:
        """The averaged tensors by name, on the model's device."""
        now = self._tensors()
        means = self._past.mean(window) or now
        return {n: mean.detach().to(now[n].device, copy=True) for n, mean in means.items()}

    def model_state(self, window: int | None = None) -> dict[str, Any]:
        """A state dict of the averaged model; what is not averaged is taken from the model."""
        means = self.tensors(window)
        state = self._module.state_dict(keep_vars=True)
        names = {id(tensor): name for name, tensor in self._tensors().items()}  # tied: one name
        averaged = {key: means[names[id(t)]] for key, t in state.items() if id(t) in names}
        return {**self._module.state_dict(), **averaged}

    def copy_to(self, other: nn.Module, window: int | None = None) -> None:
        """Load the averaged model into another module with the same architecture."""
        try:
            _unwrap(other).load_state_dict(self.model_state(window))
        except RuntimeError as error:
            raise UsageError(f"The average does not fit the other model. {error}") from None

    @contextmanager
    def applied(self, window: int | None = None) -> Iterator[nn.Module]:
        """Inside the block, the model has the averaged weights; on exit, they are restored.

        All buffers are restored too, so `torch.optim.swa_utils.update_bn` can run inside.
        """
        means = self.tensors(window)
        before = {name: t.detach().clone() for name, t in self._tensors().items()}
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        self._depth += 1
        try:
            self._write(means)
            yield self.model
        finally:
            self._write(before)
            for buffer, content in buffers:
                buffer.data.copy_(content)
            self._depth -= 1

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: past models and counters; tensors are not copied."""
        return {"format": FORMAT, "calls": self.calls, **self._past.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        form = state.get("format")
        check(form == FORMAT, f"The state has format {form!r}; this version reads {FORMAT}.")
        self._past.load_state(state)
        self.calls = state["calls"]

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write `state_dict` to a folder of its own; later calls write only what is new.

        overwrite: replace another window average that was saved there.
        """
        path = Path(folder)
        if self._store is None or self._store.folder != path:
            _check_free(path, overwrite)
            self._store = Segments(path)
        saved = self._past.save(self._store)
        path.mkdir(parents=True, exist_ok=True)
        write_manifest(path / MANIFEST, {"format": FORMAT, "calls": self.calls, **saved})
        self._store.keep(saved["sums"])

    def load(self, folder: str | PathLike[str]) -> None:
        """Resume from a folder that `save` wrote."""
        path = Path(folder)
        check((path / MANIFEST).is_file(), f"{path} contains no window average (no {MANIFEST}).")
        saved, store = read_manifest(path / MANIFEST, FORMAT), Segments(path)
        try:
            for name, checksum in saved["sums"].items():
                store.verify(name, checksum)
            self._past.load(store, saved)
            self.calls = int(saved["calls"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__}: {error}") from error
        self._store = store

    def _tensors(self) -> dict[str, Tensor]:
        """The current tensors to average; looked up each time, since `to` may replace them."""
        return {name: getattr(owner, key) for name, (owner, key) in self._owners.items()}

    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            # `data` hides the write from autograd, so a pending backward pass still works.
            tensor.data.copy_(values[name])


def _check_free(path: Path, overwrite: bool) -> None:
    """Raise unless the folder is empty, or contains only an average that may be replaced."""
    check(path.is_dir() or not path.exists(), f"{path} is a file; expected a folder.")
    there = [p.name.lstrip(".") for p in path.iterdir()] if path.exists() else []
    check(overwrite or not there, f"{path} exists: use another folder, or overwrite=True.")
    others = [name for name in there if not name.startswith(("ring-", "auto-", MANIFEST))]
    check(not others, f"{path} also contains {', '.join(others[:3])}: use a separate folder.")


def check_windows(window: int | str | Sequence[int]) -> tuple[int, ...]:
    """The windows in ascending order."""
    windows = [window] if isinstance(window, int | str) else list(window)
    check(bool(windows), "window must be one or more positive integers, got none.")
    for w in windows:
        check(errors.is_count(w), f"window must be one or more positive integers, got {w!r}.")
    return tuple(sorted({int(w) for w in windows}))


def _unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DistributedDataParallel and DataParallel."""
    check(isinstance(model, nn.Module), f"Expected a torch module, got {type(model).__name__}.")
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _choose(
    module: nn.Module, parts: str | Sequence[str] | None, use_buffers: bool
) -> dict[str, tuple[nn.Module, str]]:
    """Name -> module and attribute of the tensors to average; a tied tensor has its first name."""
    names = _trained(module, use_buffers) if parts is None else _matching(module, parts)
    check(bool(names), f"There is nothing to average: {parts!r} has no floating-point tensor.")
    paths = {name: name.rpartition(".") for name in names}
    chosen = {name: (module.get_submodule(path[0]), path[2]) for name, path in paths.items()}
    for name, (owner, key) in chosen.items():
        tensor = getattr(owner, key)
        if nn.parameter.is_lazy(tensor):
            raise UsageError(f"{name} has no shape yet: run one batch through the model first.")
        floating = tensor.is_floating_point()
        check(floating, f"{name} is {tensor.dtype}; expected a floating-point tensor.")
    return chosen


def _trained(module: nn.Module, use_buffers: bool) -> list[str]:
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    check(bool(trained), "There is nothing to average: the model has no trainable parameter.")
    if not use_buffers:
        return trained
    stored = module.state_dict()  # buffers that are not in it are constants
    buffers = module.named_buffers()
    return trained + [n for n, b in buffers if n in stored and b.is_floating_point()]


def _matching(module: nn.Module, parts: str | Sequence[str]) -> list[str]:
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    chosen: set[str] = set()
    for pattern in [parts] if isinstance(parts, str) else parts:
        names = [n for n in tensors if fnmatchcase(n, pattern) or n.startswith(f"{pattern}.")]
        if not names:
            raise errors.unknown("part", pattern, tensors)
        chosen |= {first[id(tensors[n])] for n in names if tensors[n].is_floating_point()}
    return [name for name in tensors if name in chosen]
