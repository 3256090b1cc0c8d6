"""Data frames of what runs record besides metrics."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import wima
from tests.helpers.extras import BINS, CLIENTS, DOWN, UP, add_extras, clients, records_of, rewrite
from tests.helpers.reports import ROUNDS, curves
from tests.helpers.run_folders import write_run

MODELS = ("plain", "wima10")
EVERY = 25


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    made = write_run(tmp_path_factory.mktemp("runs") / "run", {"rounds": ROUNDS}, curves(0))
    add_extras(made, 0, ROUNDS, EVERY)
    return made


@pytest.fixture(scope="module")
def result(run) -> wima.Result:
    return wima.read_run(run)


def test_clients_are_a_row_per_evaluated_round_and_model(result):
    frame = result.clients()
    rounds = [*range(EVERY, ROUNDS, EVERY), ROUNDS]
    assert [*zip(frame.t, frame.model, strict=True)] == [(t, m) for t in rounds for m in MODELS]
    for row in frame.itertuples():
        own, plain = clients(0, row.t)[row.model], clients(0, row.t)["plain"]
        assert (row.mean, row.deviation) == pytest.approx((own.mean(), own.std()))
        assert row.worst == pytest.approx(np.sort(own)[: len(own) // 10].mean())
        assert (row.q0, row.q5, row.q100) == pytest.approx(
            (*np.quantile(own, (0, 0.05)), own.max())
        )
        if row.model != "plain":
            assert (row.gained, row.lost) == ((own > plain).sum(), (own < plain).sum())
    assert set(frame["count"]) == {CLIENTS}
    assert frame[frame.model == "plain"].gained.isna().all()


def test_fine_tuning_is_a_row_per_model_and_stage(result, run):
    frame = result.finetuned()
    stages = [(model, stage) for model in MODELS for stage in ("before", "after")]
    assert [*zip(frame.model, frame.stage, strict=True)] == stages
    recorded = records_of(run)[-1]["finetuned"]
    assert frame["mean"].tolist() == [recorded[m][stage]["mean"] for m, stage in stages]
    assert set(frame.t) == {ROUNDS}


def test_calibration_is_a_row_per_round_model_and_bin(result, run):
    frame = result.calibration()
    assert len(frame) == ROUNDS * len(MODELS) * BINS
    last = frame[(frame.t == ROUNDS) & (frame.model == "wima10")]
    recorded = records_of(run)[-1]["calibration"]["wima10"]
    assert last["count"].tolist() == [count for count, _, _ in recorded]
    filled = last[last["count"] > 0]
    assert filled.accuracy.tolist() == [accuracy for count, _, accuracy in recorded if count]
    assert last[last["count"] == 0][["confidence", "accuracy"]].isna().all(axis=None)


def test_the_frame_of_metrics_has_the_bytes_until_each_round_if_all_rounds_say_them(
    result, run, tmp_path
):
    frame = result.to_pandas()
    assert frame["bytes"].tolist() == [(DOWN + UP) * t for t in frame.t]
    assert "ece" in frame
    shutil.copytree(run, tmp_path / "older")
    rewrite(tmp_path / "older", lambda r: r.pop("bytes") if r["t"] < 3 else None)
    assert "bytes" not in wima.read_run(tmp_path / "older").to_pandas()


def test_without_such_records_the_frames_are_empty(tmp_path):
    result = wima.read_run(write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0)))
    frames = (result.clients(), result.finetuned(), result.calibration())
    assert all(frame.empty and {"t", "model"} <= {*frame.columns} for frame in frames)
    assert "bytes" not in result.to_pandas()
