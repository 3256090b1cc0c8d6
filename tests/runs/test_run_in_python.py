"""What Python gets of a run: the same from memory and from a folder."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import wima
from tests.helpers.interrupted import after_round
from tests.helpers.unequal import OPTIONS, task_of
from wima.core.statistics import last_rounds
from wima.runs.launch import launch
from wima.runs.run import read_run as read_folder
from wima.runs.settings import load_settings

AVERAGERS = [wima.WIMA(3), wima.WIMA("auto")]
LONG = {**OPTIONS, "rounds": 12, "averagers": AVERAGERS, "engine": "serial"}


@pytest.fixture(autouse=True)
def no_windows(monkeypatch, tmp_path):
    """Plots go nowhere, and files into an empty folder."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def result() -> wima.Result:
    return wima.run(task_of(), **LONG)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> wima.Result:
    return wima.run(task_of(), out=tmp_path_factory.mktemp("runs") / "run", **LONG)


def without_seconds(result: wima.Result):
    return result.to_pandas().drop(columns="seconds")


def test_a_session_from_frame_to_plot_to_module(result):
    task = task_of()
    frame = result.to_pandas()
    final = frame[(frame.t == 12) & (frame.model == "wima3")].accuracy.item()
    axes = result.plot()
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "--", "--"]
    model = result.model("wima3")
    assert isinstance(model, nn.Linear) and not model.training
    right = model(task.evaluate.x).argmax(1) == task.evaluate.y
    assert right.double().mean().item() == pytest.approx(final, abs=1e-12)
    assert final == result.records[-1].metrics["wima3"]["accuracy"]


def test_a_frame_has_a_row_per_round_and_model(result):
    frame = result.to_pandas()
    expected = [
        (r.t, model, m["accuracy"], m["loss"])
        for r in result.records
        for model, m in r.metrics.items()
    ]
    found = frame[["t", "model", "accuracy", "loss"]].itertuples(index=False, name=None)
    assert list(found) == expected
    varied = frame[frame.model == "wima-auto"].window.tolist()
    assert varied == [r.windows["wima-auto"] for r in result.records]
    assert frame[frame.model != "wima-auto"].window.isna().all()


def test_the_summary_is_the_mean_over_the_last_rounds(result):
    last = last_rounds(len(result.records))
    for row in result.summary("loss"):
        values = [r.metrics[row.model]["loss"] for r in result.records[-last:]]
        assert (row.mean, row.deviation) == pytest.approx((np.mean(values), np.std(values)))
    text, page = repr(result.summary()), result.summary()._repr_html_()
    for row in result.summary():
        assert f"{100 * row.mean:.2f}" in text and f"{100 * row.mean:.2f}" in page


def test_a_result_shows_itself_in_a_few_lines(result, stored):
    for shown in (result, stored):
        assert len(repr(shown).splitlines()) == 2 and "wima-auto" in repr(shown)
        assert shown._repr_html_().count("<tr>") == 1 + len(shown.models)
    many = wima.run(task_of(), averagers=[wima.WIMA(n) for n in range(1, 30)], **OPTIONS)
    assert len(repr(many)) < 400


def test_a_folder_gives_the_same_result_as_memory(result, stored):
    read = wima.read_run(stored.path, task_of())
    for other in (stored, read):
        assert without_seconds(other).equals(without_seconds(result))
        assert other.summary() == result.summary()
        assert other.models == result.models == list(result.vectors)
        for name, w in result.vectors.items():
            assert torch.equal(other.vectors[name], w)
    assert (stored.path / "curves.png").is_file()


def test_a_run_under_way_is_read_up_to_its_last_record(stored, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(stored.path, copy)
    times = (copy / "times.jsonl").read_text().splitlines(keepends=True)
    (copy / "times.jsonl").write_text("".join(times[:-1]))  # written after the record
    read = wima.read_run(copy)
    assert len(read.records) == len(stored.records) and np.isnan(read.records[-1].seconds)
    (copy / "records.jsonl").write_text('{"metrics": {}}\n')
    with pytest.raises(wima.UsageError, match="damaged"):
        wima.read_run(copy).records  # noqa: B018


def test_what_wima_run_wrote_is_read_with_its_models(tmp_path):
    settings = load_settings("digits", ["rounds=4", "window=2", "engine=serial"])
    launch(settings, tmp_path / "run")
    read = wima.read_run(tmp_path / "run")
    from wima.data.sets.digits import digits

    data = digits()
    right = read.model("wima2")(torch.from_numpy(data.x_test)).argmax(1).numpy() == data.y_test
    assert right.mean() == pytest.approx(read.records[-1].metrics["wima2"]["accuracy"])


def test_a_module_has_statistics_frozen_and_tied_weights_too():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.register_buffer("scale", torch.randn(6), persistent=False)
            self.head = nn.Linear(6, 3).requires_grad_(False)

        def forward(self, x):
            return self.head(self.b(self.norm(self.a(x))) * self.scale)

    base = task_of()
    task = wima.make_task(Net, base.data, (base.evaluate.x, base.evaluate.y))
    generator = torch.get_rng_state()
    result = wima.run(task, averagers=wima.WIMA(3), **OPTIONS)
    model = result.model("wima3")
    assert torch.equal(torch.get_rng_state(), generator)
    right = (model(base.evaluate.x).argmax(1) == base.evaluate.y).double().mean().item()
    assert right == pytest.approx(result.records[-1].metrics["wima3"]["accuracy"])
    with torch.no_grad():
        model.a.weight.zero_()
    assert not torch.equal(result.model("wima3").a.weight, model.a.weight), "memory of its own"


def test_an_interrupted_run_is_resumed_by_the_same_call_and_by_nothing_else(tmp_path, cli):
    path, whole = tmp_path / "run", wima.run(task_of(), wima.Scaffold(), **LONG)

    def call(algorithm=None, **changes):
        return wima.run(
            task_of(), algorithm or wima.Scaffold(), out=path, resume=True, **{**LONG, **changes}
        )

    after_round(5, stop)
    with pytest.raises(
        Exception, match=r"wima\.run\(\.\.\., out=\.\.\., resume=True\).* resumes the run"
    ):
        call()
    status = read_folder(path).status
    assert status["state"] == "interrupted" and "resume=True" in status["resume"]
    code, _, err = cli("resume", str(path))
    assert code == 2 and "Python objects" in err and "resume=True" in err
    with pytest.raises(wima.UsageError, match="no final models"):
        wima.read_run(path, task_of()).model()
    with pytest.raises(wima.UsageError, match="different settings"):
        call(lr=0.2)
    done = call()
    assert without_seconds(done).equals(without_seconds(whole))
    assert torch.equal(done.vectors["wima3"], whole.vectors["wima3"])
    assert without_seconds(call()).equals(without_seconds(whole)), "done: it is read"


def stop() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def test_progress_shows_rounds_and_is_off_by_default(capsys):
    wima.run(task_of(), **OPTIONS)
    assert capsys.readouterr().out == ""
    wima.run(task_of(), progress=True, **OPTIONS)
    assert f"round 6/{OPTIONS['rounds']}" in capsys.readouterr().out


def test_mistakes_are_answered_with_what_there_is(result, stored, monkeypatch):
    with pytest.raises(wima.UsageError, match=r"Unknown model 'wima4'.*plain, wima-auto, wima3"):
        result.model("wima4")
    with pytest.raises(wima.UsageError, match=r"Unknown metric 'f1'.*accuracy, loss"):
        result.plot("f1")
    with pytest.raises(wima.UsageError, match=r"read_run\(path, task\)"):
        wima.read_run(stored.path).model("wima3")
    with pytest.raises(wima.UsageError, match="already exists"):
        wima.run(task_of(), out=stored.path, **LONG)
    with pytest.raises(wima.UsageError, match="needs out="):
        wima.run(task_of(), resume=True, **LONG)
    unevaluated = wima.run(task_of(), eval_every=0, **OPTIONS)
    assert "no model was evaluated" in repr(unevaluated) and unevaluated.to_pandas().empty
    with pytest.raises(wima.UsageError, match="eval_every"):
        unevaluated.summary()
