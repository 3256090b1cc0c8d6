"""The window average of a model in any training loop."""

from __future__ import annotations

import copy
import io
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import wima
from wima.loop.window_average import MANIFEST

STEPS = 200
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Odd(nn.Module):
    """Tensors of given shapes, dtypes and kinds; the first one also has a second name."""

    def __init__(self, kinds: list[tuple[tuple[int, ...], torch.dtype, str]]) -> None:
        super().__init__()
        for k, (shape, dtype, kind) in enumerate(kinds):
            value = torch.randn(shape, dtype=torch.float64).to(dtype)
            if kind == "buffer":
                self.register_buffer(f"t{k}", value)
            else:
                self.register_parameter(f"t{k}", nn.Parameter(value, kind == "trained"))
        self.register_buffer("steps", torch.tensor(0))
        self.inner = nn.Module()
        if kinds[0][2] != "buffer":
            self.inner.tied = self.t0

    @torch.no_grad()
    def step(self) -> None:
        """A random walk of all that is not frozen."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter += torch.randn_like(parameter) / 8
        for buffer in self.buffers():
            buffer += torch.randn_like(buffer) / 8 if buffer.is_floating_point() else 1


def naive_mean(copies: list[nn.Module], window: int) -> dict[str, torch.Tensor]:
    """The mean of the last copies; of integers, the newest."""
    states = [model.state_dict() for model in copies[-window:]]
    return {
        name: torch.stack([s[name].double() for s in states]).mean(0).to(newest.dtype)
        if newest.is_floating_point()
        else newest
        for name, newest in states[-1].items()
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal up to the rounding of each tensor's own dtype."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        exact = not tensor.is_floating_point()
        near = 0.0 if exact else max(torch.finfo(tensor.dtype).eps, 1e-12)
        torch.testing.assert_close(found[name], tensor, rtol=near, atol=near / 8)


def assert_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(_bytes(found[name]), _bytes(tensor)), name


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def clone(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def net() -> nn.Sequential:
    """A network with dropout and BatchNorm: random numbers and buffers."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    return nn.Sequential(*layers)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def train(model: nn.Module, steps: int, after=lambda: None) -> torch.optim.Optimizer:
    """SGD with momentum on digits; `after` is called after every step."""
    torch.manual_seed(1)
    x, y = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        after()
    return optimizer


shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
kinds = st.sampled_from(["trained", "trained", "frozen", "buffer"])
tensors = st.lists(st.tuples(shapes, st.sampled_from(DTYPES), kinds), min_size=1, max_size=5)


@how(max_examples=20, deadline=None)
@given(tensors, st.sets(st.integers(1, 50), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_the_average_is_the_mean_of_deep_copies(kinds, windows, seed):
    torch.manual_seed(seed)
    model = Odd([((2,), torch.float32, "trained"), *kinds])
    average, copies = wima.WindowAverage(model, sorted(windows)), []
    for step in range(1, STEPS + 1):
        model.step()
        average.update()
        copies = [*copies, copy.deepcopy(model)][-50:]
        if step in (1, 7, 50, STEPS - 1, STEPS):
            for window in windows:
                assert_same(average.model_state(window), naive_mean(copies, window))


def test_every_window_of_one_ring_is_a_mean_of_deep_copies():
    torch.manual_seed(0)
    model = Odd([((3, 2), torch.float32, "trained"), ((4,), torch.float32, "buffer")])
    average, copies = wima.WindowAverage(model, 50), []
    for _ in range(STEPS):
        model.step()
        average.update()
        copies = [*copies, copy.deepcopy(model)][-50:]
    for window in range(1, 51):
        assert_same(average.model_state(window), naive_mean(copies, window))


def test_training_is_bit_identical_with_and_without():
    plain, watched = net(), net()
    average = wima.WindowAverage(watched, window=20)
    loader = [digits()[0][:50]]

    def watch() -> None:
        average.update()
        if average.calls % 10 == 0:
            with average.applied(), torch.random.fork_rng():  # dropout draws
                update_bn(loader, watched)

    optimizers = train(plain, 60), train(watched, 60, after=watch)
    assert_bits(watched.state_dict(), plain.state_dict())
    for a, b in zip(*(o.state_dict()["state"].values() for o in optimizers), strict=True):
        assert_bits(a, b)


def test_an_exception_inside_applied_restores_every_bit():
    model = net()
    average = wima.WindowAverage(model, window=5)
    train(model, 12, after=average.update)
    with torch.no_grad():  # bits that arithmetic would not keep
        model[0].weight[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    before = clone(model)
    with pytest.raises(ZeroDivisionError), average.applied():  # noqa: PT012
        assert not torch.equal(model[4].weight, before["4.weight"])
        model(digits()[0])  # in training mode: moves BatchNorm's statistics and its counter
        model[4].weight.data.zero_()
        raise ZeroDivisionError
    assert_bits(model.state_dict(), before)
    average.update()  # goes on


def test_eq_7_the_average_is_the_last_steps_with_a_falling_learning_rate():
    window, model, walk = 8, net().double(), []
    average = wima.WindowAverage(model, window, use_buffers=False)

    def note() -> None:
        average.update()
        walk.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    train_in_double(model, 30, note)
    steps = [before - after for before, after in pairwise(walk)]  # w <- w - u
    start = len(walk) - 1 - window  # the model before the window
    expected = walk[start].clone()
    for j in range(window):
        expected -= (window - j) / window * steps[start + j]
    found = torch.cat([t.reshape(-1) for t in average.tensors().values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def train_in_double(model: nn.Module, steps: int, after) -> None:
    x, y = digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for k in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[k : k + 32].double()), y[k : k + 32]).backward()
        optimizer.step()
        after()


def test_a_window_as_long_as_training_is_torchs_averaged_model():
    model = net()
    average, theirs = wima.WindowAverage(model, 100), AveragedModel(model, use_buffers=True)
    train(model, 40, after=lambda: (average.update(), theirs.update_parameters(model)))
    ours = copy.deepcopy(model)
    average.copy_to(ours)
    loader = list(digits()[0].split(200))
    for check in (lambda: None, lambda: [update_bn(loader, m) for m in (ours, theirs)]):
        check()
        for name, tensor in theirs.module.state_dict().items():
            if "num_batches" not in name:  # theirs averages the counter in integers
                torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=2e-5, atol=2e-6)


def test_without_use_buffers_they_are_the_models():
    model = net()
    average = wima.WindowAverage(model, 10, use_buffers=False)
    train(model, 20, after=average.update)
    state = average.model_state()
    assert torch.equal(state["1.running_mean"], model[1].running_mean)
    assert not torch.equal(state["1.weight"], model[1].weight)


def test_only_each_kth_update_counts():
    model = Odd([((3,), torch.float32, "trained")])
    average, copies = wima.WindowAverage(model, 4, every=3), []
    before = average.tensors()
    for step in range(1, 30):
        model.step()
        average.update()
        copies += [copy.deepcopy(model)] if step % 3 == 0 else []
        if copies:
            expected = naive_mean(copies, 4)["t0"]
            torch.testing.assert_close(average.tensors()["t0"], expected)
        else:
            assert torch.equal(average.tensors()["t0"], model.t0)
    assert not torch.equal(before["t0"], model.t0)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ("t*", ["t0", "t1"]),
        ("t1", ["t1"]),
        ("inner", ["t0"]),  # the second name of t0
        (["inner.tied", "t1"], ["t0", "t1"]),
        ("*", ["t0", "t1"]),  # frozen ones too, but no integers
    ],
)
def test_parts_are_names_patterns_or_modules(parts, names):
    model = Odd([((2,), torch.float32, "trained"), ((3,), torch.float64, "frozen")])
    average = wima.WindowAverage(model, 2, parts=parts)
    assert average.names == names
    for _ in range(3):
        model.step()
        average.update()
    state = average.model_state()
    assert torch.equal(state["t0"], model.t0) == ("t0" not in names)
    assert torch.equal(state["t0"], state["inner.tied"])


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}])
def test_past_models_in_a_file_are_past_models_in_memory(tmp_path, options):
    model = Odd([((5,), torch.float32, "trained"), ((2, 2), torch.float64, "trained")])
    places = ({}, {"folder": tmp_path / "new"})
    averages = [wima.WindowAverage(model, 7, **options, **place) for place in places]
    for _ in range(20):
        model.step()
        for average in averages:
            average.update()
    assert_bits(averages[1].model_state(5), averages[0].model_state(5))
    assert list((tmp_path / "new").iterdir()) == []  # the file has no name


def test_in_bfloat16_the_average_is_that_of_rounded_models():
    model = Odd([((50,), torch.float32, "trained")])
    average, rounded = wima.WindowAverage(model, 9, dtype=torch.bfloat16), []
    for _ in range(20):
        model.step()
        average.update()
        rounded.append(model.t0.detach().bfloat16().double())
    expected = torch.stack(rounded[-9:]).mean(0).float()
    torch.testing.assert_close(average.tensors()["t0"], expected, rtol=2e-7, atol=1e-8)
    assert average.tensors()["t0"].dtype == torch.float32


def test_compiled_and_data_parallel_modules_are_unwrapped(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        inner = net()
        wrapped = torch.compile(nn.parallel.DistributedDataParallel(inner), backend="eager")
        averages = [wima.WindowAverage(model, 3) for model in (inner, wrapped)]
        train(wrapped, 5, after=lambda: [average.update() for average in averages])
        assert averages[1].names == averages[0].names
        assert set(averages[0].names) == {n for n in inner.state_dict() if "num" not in n}
        assert_bits(averages[1].model_state(), averages[0].model_state())
        with averages[1].applied() as model:
            assert model is wrapped
            assert_bits(inner.state_dict(), averages[1].model_state())
        other = net()
        averages[1].copy_to(nn.DataParallel(other))
        assert_bits(other.state_dict(), averages[0].model_state())
    finally:
        torch.distributed.destroy_process_group()


def test_applied_between_forward_and_backward_changes_no_gradient():
    gradients = []
    for watched in (False, True):
        model = net()
        average = wima.WindowAverage(model, 2)
        train(model, 3, after=average.update)
        torch.manual_seed(0)
        loss = model(digits()[0]).square().mean()
        if watched:
            with average.applied():
                pass
        model.zero_grad()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_windows_nest_and_no_update_is_taken_within():
    model = Odd([((3,), torch.float32, "trained")])
    average = wima.WindowAverage(model, [2, 5])
    for _ in range(6):
        model.step()
        average.update()
    last, means = model.t0.detach().clone(), {w: average.tensors(w)["t0"] for w in (2, 5)}
    with average.applied(5):
        with average.applied(2):
            assert torch.equal(model.t0, means[2])
        assert torch.equal(model.t0, means[5])
        with pytest.raises(wima.UsageError, match="would average an average"):
            average.update()
    assert torch.equal(model.t0, last) and average.n_averaged == 5


def test_updates_allocate_nothing_after_the_first():
    model = net()
    average = wima.WindowAverage(model, 3)
    average.update()
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(5):
            average.update()
    copies = [event for event in profile.events() if event.name == "aten::copy_"]
    assert len(copies) >= 5 * len(average.names)
    assert [e.name for e in profile.events() if e.self_cpu_memory_usage > 0] == []


def test_other_devices_get_one_vector_and_one_transfer():
    model = net()
    average = wima.WindowAverage(model, 3, device="meta")  # stands in for a GPU
    for _ in range(4):
        average.update()
    (stage,) = average._ring._stages.values()
    assert stage.device.type == "cpu" and stage.numel() == sum(
        t.numel() for n, t in model.state_dict().items() if "num_batches" not in n
    )
    on_meta = wima.WindowAverage(net().to("meta"), 3, device="meta")
    on_meta.update()
    with on_meta.applied() as applied:
        assert all(p.is_meta for p in applied.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is at hand")
def test_a_model_on_a_gpu_is_averaged_on_the_cpu():
    model = net().to("cuda")
    average = wima.WindowAverage(model, 3)
    average.update()
    assert_bits(average.model_state(), model.state_dict())


def resumed(model: nn.Module, move, **options) -> None:
    """Stop after 13 steps, move the state to another average, go on: the same as without a stop."""
    whole = wima.WindowAverage(model, [3, 6], every=2)
    first = wima.WindowAverage(model, [3, 6], every=2)
    for average in ([whole, first],) * 13:
        model.step()
        for one in average:
            one.update()
    second = wima.WindowAverage(model, [3, 6], every=2, **options)
    move(first, second)
    for _ in range(5):
        model.step()
        whole.update()
        second.update()
    for window in range(1, 7):
        assert_bits(second.model_state(window), whole.model_state(window))


def through_torch_save(first: wima.WindowAverage, second: wima.WindowAverage) -> None:
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))


KINDS = [((5,), torch.float32, "trained"), ((2, 2), torch.float64, "trained")]


@pytest.mark.parametrize("mapped", [False, True])
def test_an_average_goes_on_where_its_state_was_taken_or_saved(tmp_path, mapped):
    options = {"folder": tmp_path / "rows"} if mapped else {}
    resumed(Odd(KINDS), through_torch_save, **options)

    def through_files(first: wima.WindowAverage, second: wima.WindowAverage) -> None:
        first.save(tmp_path / "saved")
        second.load(tmp_path / "saved")

    resumed(Odd(KINDS), through_files, **options)


def test_saving_again_writes_only_what_is_new(tmp_path):
    model = Odd(KINDS)
    average = wima.WindowAverage(model, 4)
    for steps in (3, 2, 1, 4, 9):
        for _ in range(steps):
            model.step()
            average.update()
        old = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("a/ring-*")}
        average.save(tmp_path / "a")
        new = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("a/ring-*")}
        assert all(new[name] == old[name] for name in new.keys() & old.keys())
        assert bool(new.keys() & old.keys()) == (steps < 4 and bool(old))
        fresh = wima.WindowAverage(model, 4)
        fresh.load(tmp_path / "a")
        assert_bits(fresh.model_state(), average.model_state())
    average.save(tmp_path / "b")  # all of it, elsewhere
    average.load_state_dict(wima.WindowAverage(model, 4).state_dict())
    average.update()
    average.save(tmp_path / "b")
    assert len(list(tmp_path.glob("b/ring-*"))) == 2  # one dtype each, and nothing stale


def test_saving_never_removes_what_is_not_its_own(tmp_path):
    average = wima.WindowAverage(Odd(KINDS), 4)
    average.update()
    average.save(tmp_path / "mine")
    other = wima.WindowAverage(Odd(KINDS), 4)
    with pytest.raises(wima.UsageError, match="exists: name another folder, or overwrite=True"):
        other.save(tmp_path / "mine")
    other.update()
    other.save(tmp_path / "mine", overwrite=True)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(wima.UsageError, match=r"also holds m.*: name a folder of its own"):
        other.save(tmp_path, overwrite=True)
    with pytest.raises(wima.UsageError, match="is a file"):
        other.save(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


def test_a_shorter_window_can_be_loaded_and_a_longer_one_cannot(tmp_path):
    model = Odd(KINDS)
    average = wima.WindowAverage(model, 6)
    for _ in range(10):
        model.step()
        average.update()
    average.save(tmp_path / "saved")
    for load in (
        lambda a: a.load(tmp_path / "saved"),
        lambda a: a.load_state_dict(average.state_dict()),
    ):
        shorter = wima.WindowAverage(model, 4)
        load(shorter)
        assert_bits(shorter.model_state(3), average.model_state(3))
        with pytest.raises(wima.UsageError, match="window is 7, but only the last 6 models"):
            load(wima.WindowAverage(model, 7))


def test_what_was_saved_of_another_model_or_damaged_is_refused(tmp_path):
    average = wima.WindowAverage(Odd(KINDS), 3)
    average.update()
    average.save(tmp_path / "saved")
    other = wima.WindowAverage(Odd([((4,), torch.float32, "trained"), *KINDS[1:]]), 3)
    with pytest.raises(wima.UsageError, match=r"t0 is float32 \[4\] here, but was float32 \[5\]"):
        other.load(tmp_path / "saved")
    with pytest.raises(wima.UsageError, match="t1 is not averaged here"):
        wima.WindowAverage(Odd(KINDS[:1]), 3).load(tmp_path / "saved")
    with pytest.raises(wima.UsageError, match="holds no window average"):
        average.load(tmp_path)
    with pytest.raises(wima.UsageError, match="format None"):
        average.load_state_dict({})
    damage(next((tmp_path / "saved").glob("ring-*")))
    with pytest.raises(wima.RunError, match="damaged"):
        wima.WindowAverage(Odd(KINDS), 3).load(tmp_path / "saved")
    damage(tmp_path / "saved" / MANIFEST)
    with pytest.raises(wima.RunError, match="damaged"):
        wima.WindowAverage(Odd(KINDS), 3).load(tmp_path / "saved")


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def frozen() -> nn.Module:
    return Odd([((2,), torch.float32, "frozen")])


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (net, {"window": 0}, "window must be a positive integer, got 0"),
        (net, {"window": []}, "got none"),
        (net, {"every": 1.5}, "every must be a positive integer, got 1.5"),
        (net, {"parts": "4.wieght"}, "Unknown part '4.wieght'; did you mean '4.weight'"),
        (net, {"parts": "1.num_batches_tracked"}, "no floating tensor"),
        (frozen, {}, "no trainable parameter"),
        (lambda: nn.LazyLinear(3), {}, "weight has no shape yet"),
        (
            lambda: nn.ParameterList([torch.ones(2, dtype=torch.complex64)]),
            {},
            "0 is torch.complex64",
        ),
        (lambda: "model", {}, "Expected a torch module, got str"),
        (net, {"folder": __file__}, "cannot hold"),
        (net, {"folder": "/proc", "window": 10}, "cannot hold"),
    ],
)
def test_mistakes_are_named(model, options, message):
    with pytest.raises(wima.UsageError, match=message):
        wima.WindowAverage(model(), **options)


def test_a_file_that_the_disk_cannot_hold_is_refused_at_once(tmp_path):
    with pytest.raises(wima.UsageError, match=r"cannot hold \d+\.\d GB of past models"):
        wima.WindowAverage(net(), window=10**12, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_changes_of_the_model_are_named():
    model = Odd([((2,), torch.float32, "trained"), ((3,), torch.float32, "frozen")])
    average = wima.WindowAverage(model, 3)
    model.t1.requires_grad_(True)
    with pytest.raises(wima.UsageError, match="t1 was frozen and is now trained"):
        average.update()
    model.t1.requires_grad_(False)
    model.double()
    with pytest.raises(wima.UsageError, match=r"t0 was float32 \(2,\).*is now float64 \(2,\)"):
        average.update()
    with pytest.raises(wima.UsageError, match="does not fit the other model"):
        average.copy_to(nn.Linear(2, 2))
    with pytest.raises(wima.UsageError, match="the last 3 models are kept"):
        average.tensors(4)
