"""Invalid updates are left out, counted and named; the round continues without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from tests.helpers.federations import (
    SIZES,
    FaultyGrid,
    assert_models,
    assert_same,
    models_of,
    over,
    settings_of,
    simulated,
)
from tests.helpers.npy import npy
from wima.core.errors import RunError, UsageError
from wima.flower import Options
from wima.flower.app.server import Update, too_long

BAD = 103  # the node, client 3


def arrays_of(reply) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in reply.content["update"].items()}


def with_arrays(reply, arrays: dict[str, np.ndarray]):
    reply.content["update"] = ArrayRecord({name: Array(a) for name, a in arrays.items()})
    return reply


def scaled(factor: float, *names: str):
    def spoil(reply):
        arrays = arrays_of(reply)
        return with_arrays(
            reply, {n: np.float32(factor) * a if n in names else a for n, a in arrays.items()}
        )

    return spoil


def one_nan(reply):
    arrays = arrays_of(reply)
    arrays["delta"] = arrays["delta"].copy()
    arrays["delta"][7] = np.nan
    return with_arrays(reply, arrays)


def shorter(reply):
    return with_arrays(reply, {name: a[:-1] for name, a in arrays_of(reply).items()})


def two_dimensional(reply):
    return with_arrays(reply, {name: a[None] for name, a in arrays_of(reply).items()})


def double(reply):
    return with_arrays(reply, {n: a.astype(np.float64) for n, a in arrays_of(reply).items()})


def without(name: str):
    def spoil(reply):
        arrays = arrays_of(reply)
        del arrays[name]
        return with_arrays(reply, arrays)

    return spoil


def unasked(reply):
    return with_arrays(reply, {**arrays_of(reply), "more": np.zeros(3, np.float32)})


def no_records(reply):
    reply.content = RecordDict()
    return reply


def examples(number):
    def spoil(reply):
        reply.content["visit"] = MetricRecord({"examples": number})
        return reply

    return spoil


def with_bytes(data: bytes):
    def spoil(reply):
        array = reply.content["update"]["delta"]
        reply.content["update"]["delta"] = Array(array.dtype, array.shape, array.stype, data)
        return reply

    return spoil


SPOILT = {
    "nan": (one_nan, "delta is not finite"),
    "infinite": (scaled(np.inf, "delta"), "delta is not finite"),
    "shape": (shorter, "delta must be float32 of shape"),
    "dimensions": (two_dimensional, "delta must be float32 of shape"),
    "dtype": (double, "got torch.float64"),
    "no-delta": (without("delta"), "expected arrays delta, extra, got extra"),
    "no-extra": (without("extra"), "expected arrays delta, extra, got delta"),
    "unasked": (unasked, "got delta, extra, more"),
    "no-records": (no_records, "expected records update and visit"),
    "million-fold": (scaled(1e6, "delta"), "the norm of delta is"),
    "million-fold-extra": (scaled(1e6, "extra"), "the norm of extra is"),
    "no-examples": (examples(0), "expected a number of examples, got 0"),
    "negative-examples": (examples(-5), "got -5"),
    "half-an-example": (examples(0.5), "got 0.5"),
    "bytes": (with_bytes(b"nonsense"), "its arrays cannot be read"),
    "huge": (with_bytes(npy(f"({10**13},)")), f"expected {4 * 10**13} bytes"),
}


def in_round(t: int, spoil, kind: str = "train"):
    """Spoil the update of one node in round t."""

    def change(node, message, reply):
        hit = node == BAD and message.metadata.group_id == str(t)
        return spoil(reply) if hit and message.metadata.message_type == kind else reply

    return change


def everyone(tmp_path, **changes):
    return settings_of(tmp_path, **{"algorithm": "scaffold", "clients_per_round": 5, **changes})


def simulated_without(client: int, rounds: list[int], settings):
    """The simulator's models if the client is in no cohort of these rounds (from 1)."""
    whole = list(range(len(SIZES)))

    def cohorts(seed, t):
        return [i for i in whole if i != client or t + 1 not in rounds]

    return simulated(settings, cohorts=cohorts)[1]


@pytest.mark.parametrize("case", SPOILT)
def test_a_senseless_update_is_left_out_and_named(case, tmp_path, caplog):
    spoil, reason = SPOILT[case]
    settings = everyone(tmp_path)
    strategy, run = over(FaultyGrid(in_round(2, spoil)), settings, tmp_path / "run")
    assert strategy.rejected == 1
    (warning,) = [r.getMessage() for r in caplog.records if "is invalid" in r.getMessage()]
    assert "round 2: the update of node 103 (client 3) is invalid" in warning
    assert reason in warning
    assert "rejected so far: 1" in warning
    assert [r.excluded for r in run.records] == [(), (3,), (), (), ()]
    assert_models(run, settings, simulated_without(3, [2], settings))


@pytest.mark.parametrize("algorithm", ["fedavg", "adabest", "feddyn", "fedcm"])
def test_what_follows_is_as_if_the_client_had_not_been_asked(algorithm, tmp_path):
    settings = everyone(tmp_path, algorithm=algorithm)
    grid = FaultyGrid(in_round(2, one_nan))
    _, run = over(grid, settings, tmp_path / "run")
    assert_models(run, settings, simulated_without(3, [2], settings))


def test_a_senseless_gradient_keeps_the_client_out_of_mimes_round(tmp_path, caplog):
    settings = everyone(tmp_path, algorithm="mime")

    def spoil(reply):
        return with_arrays(reply, {"gradient": np.float32(1e9) * arrays_of(reply)["gradient"]})

    grid = FaultyGrid(in_round(2, spoil, "train.gradient"))
    _, run = over(grid, settings, tmp_path / "run")
    assert "the norm of gradient is" in caplog.text
    assert_models(run, settings, simulated_without(3, [2], settings))


def test_every_rejection_counts(tmp_path, caplog):
    settings = everyone(tmp_path)
    strategy, run = over(FaultyGrid(always(one_nan)), settings, tmp_path / "run")
    assert strategy.rejected == settings.rounds
    assert "rejected so far: 5" in caplog.text
    assert_models(run, settings, simulated_without(3, [1, 2, 3, 4, 5], settings))


def test_without_the_guard_a_senseless_update_ends_the_run_by_name(tmp_path):
    grid = FaultyGrid(in_round(2, one_nan))
    with pytest.raises(RunError, match=r"node 103 \(client 3\) is invalid: delta is not finite"):
        over(grid, everyone(tmp_path), tmp_path / "run", robust=False)


def test_without_the_guard_no_update_is_too_long(tmp_path):
    grid = FaultyGrid(in_round(2, scaled(2000.0, "delta")))
    settings = everyone(tmp_path, diverged=1e9)
    strategy, _ = over(grid, settings, tmp_path / "run", robust=False)
    assert strategy.rejected == 0


def always(*spoils):
    """Spoil every update of one node."""

    def change(node, message, reply):
        if node == BAD and message.metadata.group_id:
            for spoil in spoils:
                reply = spoil(reply)
        return reply

    return change


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "mime"])
def test_a_claim_of_more_examples_than_the_data_set_has_changes_nothing(
    algorithm, tmp_path, caplog
):
    settings = everyone(tmp_path, algorithm=algorithm)
    grid = FaultyGrid(always(examples(2**40)))
    _, run = over(grid, settings, tmp_path / "run")
    assert_models(run, settings, simulated(settings)[1])
    (warning,) = [r.getMessage() for r in caplog.records if "claims" in r.getMessage()]
    assert f"Node 103 (client 3) claims {2**40} examples and is weighted with {SIZES[3]}" in warning


def test_a_hostile_update_gains_nothing_by_its_claim(tmp_path):
    settings, backwards = everyone(tmp_path), scaled(-1.0, "delta", "extra")
    runs = [
        over(FaultyGrid(always(*spoils)), settings, tmp_path / name)[1]
        for name, spoils in {"honest": [backwards], "lie": [backwards, examples(2**40)]}.items()
    ]
    honest, lie = (models_of(run, settings) for run in runs)
    assert_same(lie, honest)


def test_most_examples_limits_nodes_with_data_of_their_own(tmp_path):
    settings = everyone(tmp_path)
    claims = {"honest": 30, "lie": 2**40}
    runs = {
        name: over(FaultyGrid(always(examples(n))), settings, tmp_path / name, most_examples=30)[1]
        for name, n in claims.items()
    }
    honest, lie = (models_of(run, settings) for run in runs.values())
    assert_same(lie, honest)
    assert not torch.equal(honest["plain"], simulated(settings)[1]["plain"])  # 30, not 5


def updates(*norms: float) -> dict[int, Update]:
    return {i: Update({"delta": torch.tensor([norm])}, 1) for i, norm in enumerate(norms)}


@pytest.mark.parametrize(
    ("norms", "rejected"),
    [
        ((1.0, 1.0, 1.0), []),
        ((1.0, 1.0, 1e6), [2]),
        ((1.0, 1.0, 999.0), []),
        ((1.0, 3.0, 2500.0, 4.0), []),  # 1000 times the median of 1, 3 and 4 is 3000
        ((1.0, 3.0, 3500.0, 4.0), [2]),
        ((1e-6, 1e-6, 0.9), []),  # shorter than the model: a newcomer among settled clients
        ((1e-9, 1.0, 1.0, 1.0), []),  # one tiny update turns nobody away
        ((0.0, 0.0, 0.0), []),
        ((0.0, 0.0, 1e3), [2]),
        ((1e6, 1e6, 1.0, 1.0, 1.0), [0, 1]),
        ((1.0, 5e2), []),  # two clients: who of them is right?
        ((1.0, 1e6), [1]),
        ((1e6,), [0]),
    ],
)
def test_too_long_is_a_thousand_times_the_median_of_the_others(norms, rejected):
    assert sorted(too_long(updates(*norms), model=1.0, largest=1000.0)) == rejected


def test_the_limit_grows_with_the_model_where_there_is_no_median():
    assert too_long(updates(1.0, 5e4), model=100.0, largest=1000.0) == {}
    assert list(too_long(updates(1.0, 2e5), model=100.0, largest=1000.0)) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"largest_norm": 0.5},
        {"robust": 1},
        {"min_nodes": 0},
        {"round_seconds": 0},
        {"most_examples": -1},
    ],
)
def test_options_are_checked(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong)).replace("_", "-")):
        Options(**wrong)
