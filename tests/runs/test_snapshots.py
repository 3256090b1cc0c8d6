"""Snapshots of a run, and the means of windows that are computed from them."""

from __future__ import annotations

import re
import shutil
from fractions import Fraction
from math import fsum
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.interrupted import copy_of, killed_after, outcome, settings_of
from wima.core.errors import RunError, UsageError
from wima.core.vector import Layout
from wima.runs import snapshots
from wima.runs.build import build
from wima.runs.folder import SNAPSHOTS, read_run
from wima.runs.launch import launch, resume
from wima.runs.snapshots import Snapshots, files_in
from wima.runs.windows import Trial, choose, mean, snapshots_of, write_window

EVERY = 3
SETTINGS = {"rounds": 14, "checkpoint_every": 4, "snapshots": EVERY, "averagers": ["wima:window=6"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("snapshots") / "run"
    launch(settings_of(**SETTINGS), path)
    return path


@pytest.fixture(scope="module")
def models() -> list[torch.Tensor]:
    """The model after every round of that run."""
    with build(settings_of(**SETTINGS)) as simulation:
        return [simulation.vectors()["plain"].clone() for _ in simulation]


def flat(tensors: dict[str, torch.Tensor], like: Layout) -> torch.Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in like.slices])


def layout() -> Layout:
    with build(settings_of(**SETTINGS)) as simulation:
        return simulation.setup.task.layout


def ends(run: Path) -> list[int]:
    return [int(file.stem) for file in files_in(run / SNAPSHOTS)]


def test_every_window_is_the_mean_of_its_models(run, models):
    found, like = snapshots_of(read_run(run)), layout()
    assert [s.last for s in found] == [3, 6, 9, 12]
    for last in range(EVERY, 13, EVERY):
        for window in range(EVERY, last + 1, EVERY):
            exact = torch.stack(models[last - window : last]).double().mean(0).float()
            assert torch.equal(flat(mean(choose(found, window, last)), like), exact)


@pytest.fixture(scope="module")
def drifting(tmp_path_factory) -> tuple[np.ndarray, list]:
    """10,000 models that drift from 1,000 to a millionth, and from there back; their snapshots."""
    draw, t = np.random.default_rng(0), np.linspace(-1, 1, 10_000)[:, None]
    sizes = 10.0 ** (9 * np.abs(t) - 6)
    w = (sizes * (1 + draw.normal(size=(10_000, 30)) / 3)).astype(np.float32)
    path = tmp_path_factory.mktemp("drift")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda number: None)
        writer = Snapshots(path, 25, torch.from_numpy(w[0]), None)
        for number, model in enumerate(w, 1):
            writer.update(number, torch.from_numpy(model))
    run = type("Run", (), {"path": path, "settings": settings_of(snapshots=25)})()
    return w, snapshots_of(run)


@pytest.mark.parametrize(
    ("window", "at"), [(25, 5000), (100, 5050), (1000, 5500), (5000, 10_000), (10_000, 10_000)]
)
def test_windows_of_drifting_models_are_exact_to_the_last_bit(window, at, drifting):
    w, found = drifting
    chosen = w[at - window : at].astype(np.float64)
    true = np.float32([fsum(column) / window for column in chosen.T])  # fsum rounds once
    value = mean(choose(found, window, at))["w"].numpy()
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, true)
    np.testing.assert_array_equal(value, chosen.mean(axis=0).astype(np.float32))


def test_sums_of_the_whole_run_would_lose_bits(drifting):
    w, found = drifting
    sums = np.cumsum(w, axis=0, dtype=np.float64)
    lossy = ((sums[5049] - sums[4949]) / 100).astype(np.float32)
    assert (lossy != mean(choose(found, 100, 5050))["w"].numpy()).mean() > 0.5


@pytest.mark.parametrize("window", [25, 100, 1000])
def test_sums_are_exact_if_sizes_differ_by_less_than_the_docs_say(window):
    draw = np.random.default_rng(0)
    for _ in range(100):
        sizes = 2.0 ** draw.uniform(0, 29 - np.log2(window), size=window)
        numbers = (sizes * draw.choice([-1, 1], size=window)).astype(np.float32).astype(float)
        assert Fraction(np.cumsum(numbers)[-1]) == sum(map(Fraction, numbers))


@pytest.mark.parametrize("t", [1, 5, 9, 13])
def test_a_killed_run_comes_to_the_same_snapshots(t, run, tmp_path):
    killed_after(t, settings_of(**SETTINGS), tmp_path / "run")
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(run)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    killed_after(11, settings_of(**SETTINGS), folder / "run")
    return folder


def test_snapshots_after_the_checkpoint_are_removed_before_the_run_goes_on(killed, tmp_path):
    path = copy_of(killed, tmp_path / "run")
    assert ends(path) == [3, 6, 9]  # the checkpoint is that of round 8
    draft = path / SNAPSHOTS / ".000000009.safetensors.01234567.new"
    draft.touch()
    resume(path, changes=["snapshots=0"])
    assert ends(path) == [3, 6] and not draft.exists()


def test_the_interval_can_be_changed_when_a_run_is_resumed(killed, models, tmp_path):
    path = copy_of(killed, tmp_path / "run")
    resume(path, changes=["snapshots=2"])
    found = snapshots_of(read_run(path))
    assert [(s.first, s.last) for s in found] == [(1, 3), (4, 6), (7, 10), (11, 12), (13, 14)]
    exact = torch.stack(models[3:14]).double().mean(0).float()
    assert torch.equal(flat(mean(choose(found, 11, None)), layout()), exact)


def test_snapshots_that_are_asked_for_later_begin_there(models, tmp_path):
    killed_after(11, settings_of(**{**SETTINGS, "snapshots": 0}), tmp_path / "run")
    resume(tmp_path / "run", changes=["snapshots=3"])
    found = snapshots_of(read_run(tmp_path / "run"))
    assert [(s.first, s.last) for s in found] == [(9, 9), (10, 12)]
    exact = torch.stack(models[8:12]).double().mean(0).float()
    assert torch.equal(flat(mean(choose(found, 4, 12)), layout()), exact)


def test_a_disk_that_is_full_when_a_snapshot_is_written_costs_no_snapshot(
    run, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "save_file", full)
    with pytest.raises(RunError, match=r"failed after 2 of 14 rounds.*No space left"):
        launch(settings_of(**SETTINGS), tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(run)


def test_snapshots_change_nothing_else(run, tmp_path):
    launch(settings_of(**{**SETTINGS, "snapshots": 0}), tmp_path / "run")
    assert not (tmp_path / "run" / SNAPSHOTS).exists()
    without = outcome(tmp_path / "run")
    assert {name: outcome(run)[name] for name in without} == without
    assert read_run(run).settings.run_id == read_run(tmp_path / "run").settings.run_id


def test_links_among_snapshots_are_refused(killed, tmp_path):
    path = copy_of(killed, tmp_path / "run")
    (path / SNAPSHOTS / "000000003.safetensors").rename(tmp_path / "elsewhere")
    (path / SNAPSHOTS / "000000003.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        resume(path)


def test_wima_window_writes_tensors_by_name(cli, run, tmp_path):
    code, out, _ = cli("window", str(run), "--window", "6", "--at", "9", "--out", "m.safetensors")
    assert code == 0 and out == "m.safetensors: the mean of rounds 4 ... 9.\n"
    tensors, model = (
        load_file(tmp_path / "m.safetensors"),
        load_file(run / "models/plain.safetensors"),
    )
    assert {n: (t.shape, t.dtype) for n, t in tensors.items()} == {
        n: (t.shape, t.dtype) for n, t in model.items()
    }
    code, out, _ = cli("window", str(run), "--window", "6", "--out", "m.safetensors", "--force")
    assert code == 0 and "rounds 7 ... 12." in out


REFUSED = {
    "--window 6 --at 15": "--at 15 is after the last snapshot, at round 12.",
    "--window 6 --at 10": "--at must be a round with a snapshot, got 10; the nearest are 9 and 12.",
    "--window 6 --at 2": "--at must be a round with a snapshot, got 2; the nearest is 3.",
    "--window 6 --at 0": "--at must be a positive integer, got 0.",
    "--window 0": "--window must be a positive integer, got 0.",
    "--window 15": "The longest window that ends at round 12 is --window 12, got 15.",
    "--window 7": "would begin after round 5. Of the windows that end at round 12, the nearest are "
    "6 and 9.",
    "--window 6 --out taken.safetensors": "taken.safetensors already exists",
    "--window 6 --out mean.pt": "--out must end in .safetensors, got mean.pt.",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_windows_that_cannot_be_are_refused(arguments, cli, run, tmp_path):
    (tmp_path / "taken.safetensors").touch()
    out = [] if "--out" in arguments else ["--out", "mean.safetensors"]
    code, _, err = cli("window", str(run), *arguments.split(), *out)
    assert code == 2 and REFUSED[arguments] in err and err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["taken.safetensors"]


def test_a_run_without_snapshots_says_how_to_get_them(cli, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / SNAPSHOTS)
    command = ("window", "run", "--window", "6", "--out", "mean.safetensors")
    code, _, err = cli(*command)
    assert code == 2 and "has no snapshot yet; the first comes after round 3." in err
    settings = tmp_path / "run" / "settings.toml"
    settings.write_text(settings.read_text().replace("snapshots = 3", "snapshots = 0"))
    code, _, err = cli(*command)
    again = "wima run run/settings.toml snapshots=25 --out ..."
    assert code == 2 and f"run it again with snapshots=25: `{again}`." in err


def test_a_snapshot_that_is_damaged_or_missing_costs_only_its_own_windows(run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run, path)
    file = path / SNAPSHOTS / "000000006.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"000000006\.safetensors is damaged: .*checksum is wrong"):
        write_window(read_run(path), 9, tmp_path / "mean.safetensors")
    write_window(read_run(path), 6, tmp_path / "mean.safetensors")
    file.write_bytes(content[:-1])
    with pytest.raises(UsageError, match=r"000000006\.safetensors is damaged.*remove it"):
        write_window(read_run(path), 6, tmp_path / "other.safetensors")
    file.unlink()
    with pytest.raises(UsageError, match="ends at round 12 is --window 6, got 9"):
        write_window(read_run(path), 9, tmp_path / "other.safetensors")


def test_a_window_has_the_metrics_that_the_run_recorded_of_it(run):
    trial = Trial(read_run(run), None)
    recorded = dict(zip(*read_run(run).curve("wima6", "accuracy"), strict=True))
    assert trial.metric == "accuracy" and trial.sizes == [3, 6, 9, 12]
    for at in (6, 9, 12):
        assert trial.value(6, at) == pytest.approx(recorded[at])
    assert trial.value(12, 6) == trial.value(6, 6)  # of all there is


def test_wima_advise_tries_windows_of_a_run(cli, run, monkeypatch):
    drawn = []
    monkeypatch.setattr("wima.cli.advice.draw_advice", lambda *given: drawn.append(given))
    code, out, err = cli("advise", str(run), "--metric", "loss")
    assert code == 0, err
    assert "4 snapshots, 4 candidates, 3 end points." in out
    assert re.findall(r"│ (plain|W = \d+)", out) == ["plain", "W = 3", "W = 6", "W = 12"]
    means = {n: float(v) for n, v in re.findall(r"│ (plain|W = \d+) +│ +([\d.]+)", out)}
    best = min(means, key=means.get)
    assert f"{best} is best" in out or "Averaging does not help" in out
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "accurcy"], "Unknown metric 'accurcy'; did you mean 'accuracy'?"),
        (["--windows", "4"], "the nearest are 3 and 6"),
        (
            ["--decays", "0.9"],
            "--decays, --last, --every, --order and --key require files and --eval",
        ),
        (
            ["other"],
            "Expected --eval, with a command that evaluates a file, or a single run folder",
        ),
    ],
)
def test_advice_on_a_run_that_cannot_be_given_is_refused(arguments, message, cli, run):
    code, _, err = cli("advise", str(run), *arguments)
    assert code == 2 and message in err


def test_advice_needs_end_points_that_were_evaluated(run, tmp_path):
    launch(settings_of(**{**SETTINGS, "eval_every": 0}), tmp_path / "run")
    with pytest.raises(UsageError, match="The plain model was not evaluated in rounds"):
        Trial(read_run(tmp_path / "run"), None).ends([4, 3])


def test_other_data_are_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    file.write_text(re.sub(r'("data_checksum": ")\w', r"\1x", file.read_text()))
    with pytest.raises(UsageError, match="The data differ from those of the run"):
        Trial(read_run(tmp_path / "run"), None)
