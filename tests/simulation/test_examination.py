"""What each client gets, how models are calibrated, and what fine-tuning gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import wima
from tests.helpers.interrupted import outcome
from wima.algorithms.traffic import traffic
from wima.core.errors import UsageError
from wima.core.statistics import summary
from wima.data.federated import hold_out
from wima.data.sets.digits import digits
from wima.runs.launch import launch, resume
from wima.runs.record import as_line, checked, from_line
from wima.runs.settings import load_settings
from wima.simulation.local import batches
from wima.simulation.measures.calibration import BINS

CLIENTS, ROUNDS = 12, 4
OPTIONS = {"rounds": ROUNDS, "clients_per_round": 4, "lr": 0.1, "batch_size": 5, "eval_every": 3}
OPTIONS |= {"averagers": [wima.WIMA(3)], "eval_last": 1}
ASKED = {"client_eval_every": 2, "calibration": True, "finetune": wima.FineTune(steps=3, lr=0.05)}


@pytest.fixture(scope="module")
def bundle() -> wima.Bundle:
    return digits(num_clients=CLIENTS, alpha=0.5)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def task_of(bundle: wima.Bundle, **options: object) -> wima.Task:
    torch.manual_seed(0)
    return wima.make_task(model(), bundle.train, (bundle.x_test, bundle.y_test), **options)


def logits(task: wima.Task, w: torch.Tensor, x: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return task.workspace.module_at(w)(torch.as_tensor(x))


def accuracies(task: wima.Task, w: torch.Tensor, held, client: int | None = None) -> list[float]:
    """The accuracy of each client on what was held out for it."""
    found = []
    for i in range(CLIENTS) if client is None else [client]:
        own = held.clients == i
        right = logits(task, w, held.x[own]).argmax(1).numpy() == held.y[own]
        found.append(float(np.mean(right)))
    return found


def test_clients_are_evaluated_on_their_own_held_out_examples(bundle):
    task, held = task_of(bundle, client_test=0.2), hold_out(bundle.train, 0.2)
    simulation = wima.simulate(task, client_eval_every=2, engine="serial", **OPTIONS)
    for record in simulation:
        assert bool(record.clients) == (record.t in (2, 4))
        if not record.clients:
            continue
        values = {name: accuracies(task, w, held) for name, w in simulation.vectors().items()}
        for name, found in record.clients.items():
            expected = summary(values[name], None if name == "plain" else values["plain"])
            assert found.pop("quantiles") == pytest.approx(expected.pop("quantiles"))
            assert found == pytest.approx(expected)


def test_held_out_examples_count_for_clients_alone(bundle):
    for task in (task_of(bundle), task_of(bundle, client_test=0.2)):
        metrics = task.evaluate(task.init(0))
        right = logits(task, task.init(0), bundle.x_test).argmax(1).numpy() == bundle.y_test
        assert metrics["accuracy"] == pytest.approx(np.mean(right))


def test_pooled_test_examples_can_have_clients(bundle):
    owners = np.arange(len(bundle.y_test)) % CLIENTS
    task = task_of(bundle, test_clients=owners, eval_batch_size=50)
    simulation = wima.simulate(task, client_eval_every=4, engine="serial", **OPTIONS)
    *_, last = simulation
    right = logits(task, simulation.w, bundle.x_test).argmax(1).numpy() == bundle.y_test
    each = [float(np.mean(right[owners == i])) for i in range(CLIENTS)]
    assert last.clients["plain"]["mean"] == pytest.approx(np.mean(each))
    assert last.clients["plain"]["worst"] == pytest.approx(min(each))
    assert last.metrics["plain"]["accuracy"] == pytest.approx(np.mean(right))


def test_a_sample_of_clients_is_drawn_once_and_only_its_examples_are_kept(bundle):
    task = task_of(bundle, client_test=0.2)
    simulation = wima.simulate(task, client_eval_every=2, client_sample=5, **OPTIONS)
    evaluation = simulation.setup.task.evaluate
    assert len(evaluation.clients) == 5
    assert len(evaluation.x) < len(task.evaluate.x)
    counts = [r.clients["plain"]["count"] for r in simulation if r.clients]
    assert counts == [5, 5]


def test_what_is_asked_about_models_does_not_change_training(bundle):
    ends = []
    for asked in ({}, ASKED):
        simulation = wima.simulate(task_of(bundle, client_test=0.2), **OPTIONS, **asked)
        list(simulation)
        ends.append(simulation.w)
    assert torch.equal(*ends)


@pytest.mark.parametrize("engine", ["reference", "processes", "batched"])
def test_every_engine_records_the_same(bundle, engine):
    def lines(name: str) -> list[str]:
        workers = {"workers": 2} if name == "processes" else {}
        task = task_of(bundle, client_test=0.2)
        records = wima.simulate(task, engine=name, **OPTIONS, **ASKED, **workers)
        return [json.dumps(checked(as_line(record))) for record in records]

    if engine == "batched":  # equal up to rounding
        pairs = zip(map(json.loads, lines(engine)), map(json.loads, lines("serial")), strict=True)
        assert all(a.keys() == b.keys() for a, b in pairs)
    else:
        assert lines(engine) == lines("serial")


def test_calibration_equals_a_naive_computation(bundle):
    task = task_of(bundle, eval_batch_size=100)
    simulation = wima.simulate(task, calibration=True, **OPTIONS)
    *_, last = simulation
    probabilities = torch.softmax(logits(task, simulation.w, bundle.x_test).double(), 1).numpy()
    confidence, label = probabilities.max(1), probabilities.argmax(1)
    error = 0.0
    for b, (count, mean, right) in enumerate(last.calibration["plain"]):
        inside = (confidence > b / BINS) & (confidence <= (b + 1) / BINS)
        assert count == inside.sum()
        if count:
            assert mean == pytest.approx(confidence[inside].mean())
            assert right == pytest.approx(np.mean(label[inside] == bundle.y_test[inside]))
            error += count / len(label) * abs(mean - right)
    assert last.metrics["plain"]["ece"] == pytest.approx(error)


def test_fine_tuning_equals_sgd_from_the_final_models(bundle):
    task, held = task_of(bundle, client_test=0.2), hold_out(bundle.train, 0.2)
    how = wima.FineTune(steps=3, lr=0.05)
    simulation = wima.simulate(task, finetune=how, seed=1, **OPTIONS)
    *_, last = simulation
    sgd = wima.LocalSGD(batch_size=5, steps=3)
    for name, w in simulation.vectors().items():
        after = []
        for client in range(CLIENTS):
            y = w.clone()
            for batch in batches(held.train, client, sgd, 1, ROUNDS):
                y = y - 0.05 * task.gradient(y, batch)
            after += accuracies(task, y, held, client)
        found = last.finetuned[name]
        assert found["before"]["mean"] == pytest.approx(np.mean(accuracies(task, w, held)))
        assert found["after"]["mean"] == pytest.approx(np.mean(after))
        assert found["after"]["quantiles"][10] == pytest.approx(np.median(after))


def test_holding_out_takes_a_share_of_every_client_and_loses_nothing(bundle):
    held = hold_out(bundle.train, 0.25, seed=3)
    taken = np.bincount(held.clients, minlength=CLIENTS)
    sizes = bundle.train.sizes
    assert (taken == np.clip(np.rint(0.25 * sizes), 1, sizes - 1)).all()
    assert (held.train.sizes + taken == sizes).all()
    for i in range(CLIENTS):
        rows = [*held.train.client(i)[0], *held.x[held.clients == i]]
        assert sorted(map(bytes, rows)) == sorted(map(bytes, bundle.train.client(i)[0]))
    again, other = hold_out(bundle.train, 0.25, seed=3), hold_out(bundle.train, 0.25, seed=4)
    assert (again.x == held.x).all() and (other.x != held.x).any()


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        ({}, {"client_eval_every": 1}, "no test examples per client.*client_test=0.2"),
        ({}, {"finetune": wima.FineTune()}, "no test examples per client"),
        (
            {"test_clients": 0},
            {"client_eval_every": 1},
            "11 of 12 clients have no test examples, the first is client 1\\.",
        ),
        ({"client_test": 0.5, "metrics": {}}, {"client_eval_every": 1}, "this task has no metrics"),
        ({}, {"client_eval_every": -1}, "client_eval_every must be"),
        ({}, {"client_sample": 0}, "client_sample must be"),
        ({}, {"finetune": "sgd"}, r"finetune cannot be 'sgd'; give wima.FineTune\(\)"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(bundle, make, options, says):
    if "test_clients" in make:
        make = {"test_clients": np.zeros(len(bundle.y_test), int)}
    with pytest.raises(UsageError, match=says):
        wima.simulate(task_of(bundle, **make), **OPTIONS, **options)


def test_a_client_with_one_example_cannot_give_any():
    data = wima.FederatedData.from_arrays(np.zeros((3, 64)), np.zeros(3, int), [0, 0, 1])
    with pytest.raises(UsageError, match="client 1 has only one"):
        hold_out(data, 0.5)


def test_calibration_of_a_regression_is_refused_before_the_first_round():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    data = wima.FederatedData.from_arrays(x, x[:, :1], np.arange(20) % 4)
    loss = torch.nn.functional.mse_loss
    task = wima.make_task(lambda: torch.nn.Linear(3, 1), data, (x, x[:, :1]), loss=loss, metrics={})
    with pytest.raises(UsageError, match="score for each class and integer labels"):
        wima.simulate(task, calibration=True, **OPTIONS)


@pytest.mark.parametrize("kind", [wima.FedAvg, wima.Scaffold, wima.Mime, wima.FedCM])
def test_a_record_has_the_bytes_of_its_round(bundle, kind):
    task, vectors = task_of(bundle), traffic(kind())
    simulation = wima.simulate(task, kind(), faults=wima.Faults(dropout=0.4), **OPTIONS)
    size = 4 * len(simulation.w)
    for record in simulation:
        came = len(record.cohort) - len(record.dropped)
        up = vectors.up * size * came
        assert record.bytes == {"down": vectors.down * size * len(record.cohort), "up": up}


def test_statistics_of_norm_layers_travel_once(bundle):
    def normed() -> torch.nn.Module:
        return torch.nn.Sequential(model(), torch.nn.BatchNorm1d(10))

    task = wima.make_task(normed, bundle.train, (bundle.x_test, bundle.y_test))
    simulation = wima.simulate(task, wima.Scaffold(), **OPTIONS)
    whole, trained = 4 * len(simulation.w), 4 * task.trained
    assert whole > trained
    assert next(simulation).bytes["down"] == 4 * (whole + trained)  # w and c, to four clients


def test_records_come_back_from_their_lines(bundle):
    simulation = wima.simulate(task_of(bundle, client_test=0.2), **OPTIONS, **ASKED)
    for record in simulation:
        line = json.loads(json.dumps(as_line(record)))
        assert as_line(from_line(line, record.seconds)) == line


SETTINGS = ["digits", "clients=20", "clients_per_round=4", "rounds=6", "engine=serial"]
SETTINGS += ["client_test=0.2", "client_eval_every=3", "calibration=true", "checkpoint_every=2"]
SETTINGS += ["finetune=sgd:steps=2:lr=0.1"]


def test_a_resumed_run_records_the_same(tmp_path):
    settings = load_settings(SETTINGS[0], SETTINGS[1:])
    launch(settings, tmp_path / "a", report=lambda line: None)
    stopped = iter([None] * 4 + [KeyboardInterrupt()])

    class Stop:
        def __init__(self, *_): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def update(self, record):
            if error := next(stopped):
                raise error

    with pytest.raises(BaseException, match="Interrupted"):
        launch(settings, tmp_path / "b", progress=Stop, report=lambda line: None)
    resume(tmp_path / "b")
    assert outcome(tmp_path / "b") == outcome(tmp_path / "a")


def test_settings_that_came_later_do_not_rename_runs():
    plain, asked = (load_settings("digits", given) for given in ([], SETTINGS[5:7]))
    assert "client_test" not in plain.in_results()
    assert plain.run_id != asked.run_id
