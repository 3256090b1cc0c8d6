"""Wrong commands: exit code, an empty standard output, and a message that says what to do."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from wima.runs.launch import launch
from wima.runs.settings import load_settings

# Command -> what its message says: the wrong thing, and what was expected or should be done.
MISTAKES = {
    "runn digits": ["No such command 'runn'", "Did you mean", "'run'"],
    "demo --seed x": ["--seed", "'x' is not a valid integer"],
    "demo --seed -1": ["seed must be in 0 ...", "got -1"],
    "demo --out runs/done": ["runs/done already exists", "--out"],
    "demo rounds=3": ["unexpected extra argument", "rounds=3", "wima demo --help"],
    "run": ["Missing argument 'NAME'", "wima run --help"],
    "run Digits": ["Unknown preset 'Digits'", "did you mean 'digits'?"],
    "run lr=0.1": ["before the settings", "got 'lr=0.1'", "wima run digits lr=0.1"],
    "run none.toml": ["Cannot read none.toml", "No such file"],
    "run digits --rounds 10": ["name=value", "write rounds=10 instead of --rounds"],
    "run digits --rounds=10": ["name=value", "write rounds=10 instead of --rounds"],
    "run digits --learning-rate 0.1": ["name=value", "write lr=0.1 instead of --learning-rate"],
    "run digits --seed": ["name=value", "write seed=VALUE instead of --seed"],
    "run digits --ot x": ["No such option", "--ot", "Did you mean '--out'?"],
    "run digits lr = 0.1": ["key=value without spaces", "got 'lr'", "got '='", "got '0.1'"],
    "run digits learning_rate=0.1": ["Unknown setting 'learning_rate'", "did you mean 'lr'?"],
    "run digits bs=10": ["Unknown setting 'bs'", "did you mean 'batch_size'?"],
    "run digits cohort=5": ["Unknown setting 'cohort'", "did you mean 'clients_per_round'?"],
    "run digits dataset=x": ["Unknown setting 'dataset'", "did you mean 'data'?"],
    "run digits mu=0.1": ["Unknown setting 'mu'", "did you mean 'algorithm.mu'?"],
    "run digits out=x": ["Unknown setting 'out'", "did you mean '--out'?"],
    "run digits algorithm=FedAvg": ["Unknown algorithm 'FedAvg'", "did you mean 'fedavg'?"],
    "run digits algorithm=SCAFFOLD": ["'SCAFFOLD'", "did you mean 'scaffold'?"],
    "run digits algorithm=fedprox,mu=0.1": ["after colons", "write algorithm=fedprox:mu=0.1"],
    "run digits algorithm=fedavg,fedcm": ["expects one name", "--grid algorithm=fedavg,fedcm"],
    "run digits algorithm=fedavg:mu=1": ["hyper-parameter of fedavg 'mu'"],
    "run digits algorithm=fedprox:mu=-1": ["FedProx.mu", "[0, inf)", "got -1"],
    "run digits averagers=wima,window=5": ["averagers", "after a colon", "got 'window=5'"],
    "run digits alpha=idd": ["alpha must be a number or 'iid'", "got 'idd'"],
    "run digits alpha=0.1 split=a.npz": ["Give alpha or split, not both"],
    "run digits clients_per_round=101": ["clients_per_round", "at most", "100", "got 101"],
    "run digits eval_batch_size=0": ["eval_batch_size", "greater than or equal to 1", "got 0"],
    "run digits data_seed=-1": ["data_seed", "greater than or equal to 0", "got -1"],
    "run digits device=gpu": ["device 'gpu' cannot be used", "use device 'cpu'"],
    "run digits trackers=tensorbord": ["'tensorbord'", "did you mean 'tensorboard'?"],
    "run digits engine=distributed": ["engine 'distributed'", "torchrun", "engine 'processes'"],
    "run digits data=mnist": ["Unknown data set 'mnist'", "Known: cifar10,"],
    "run digits model=femnist-cnn": ["'femnist-cnn' needs examples of shape", "(1, 28, 28)"],
    "run digits window=0": ["WIMA.window", "positive integer", "got 0"],
    "run digits window=-1": ["WIMA.window", "positive integer", "got -1"],
    "run digits window=2.5": ["WIMA.window", "positive integer", "got 2.5"],
    "run digits window=3,0": ["WIMA.window", "positive integer", "got 0"],
    "run digits clients_per_round=0": ["clients_per_round", "positive integer", "got 0"],
    "run digits algorithm=fedavgg": ["Unknown algorithm 'fedavgg'", "did you mean 'fedavg'?"],
    "run digits server=sdg": ["Unknown server optimizer 'sdg'", "did you mean 'sgd'?"],
    "run digits averagers=wma": ["Unknown averager 'wma'", "did you mean 'wima'?"],
    "run digits data=digit": ["Unknown data set 'digit'", "did you mean 'digits'?"],
    "run digits model=mpl": ["Unknown model 'mpl'", "did you mean 'mlp'?"],
    "run digits engine=seriel": ["Unknown engine 'seriel'", "did you mean 'serial'?"],
    "run digits widow=5": ["Unknown setting 'widow'", "did you mean 'window'?"],
    "run digits server.momentun=0.5": ["of sgd 'momentun'", "did you mean 'momentum'?"],
    "run digits averagers=wima:windw=5": ["of wima 'windw'", "did you mean 'window'?"],
    "run digits seed.x=1": ["seed", "seed.something"],
    "run digits lr=-0.1": ["lr", "positive number", "got -0.1"],
    "run digits lr=0": ["lr", "positive number", "got 0"],
    "run digits lr=nan": ["lr", "positive number", "got nan"],
    "run digits lr=inf": ["lr", "positive number", "got inf"],
    "run digits server.lr=-1": ["SGD.lr", "positive number", "got -1"],
    "run digits alpha=-1": ["alpha", "0 or a positive number", "got -1"],
    "run digits clients=5000": ["at most the number of examples", "got 5000"],
    "run digits clients=0": ["positive", "got 0"],
    "run digits rounds=abc": ["rounds", "integer", "got 'abc'"],
    "run digits rounds=0": ["rounds", "positive integer", "got 0"],
    "run digits checkpoint_every=-1": ["checkpoint_every", "greater than or equal to 0", "got -1"],
    "run digits checkpoint_minutes=-0.5": ["checkpoint_minutes", "or equal to 0", "got -0.5"],
    "run digits snapshots=-1": ["snapshots", "greater than or equal to 0", "got -1"],
    "run digits rounds=true": ["rounds", "integer", "got True"],
    "run digits rounds": ["Expected key=value", "got 'rounds'"],
    "run digits =3": ["Expected key=value", "got '=3'"],
    "run digits batch_size=some": ["batch_size", "'full'", "got 'some'"],
    "run digits seed=-1": ["seed", "got -1"],
    "run digits workers=0": ["workers", "positive integer", "got 0"],
    "run digits window=3 averagers=wima:window=4": ["window or averagers, not both"],
    "run digits client_eval_every=5": ["no test examples per client", "client_test=0.2"],
    "run digits client_test=1.5": ["client_test must be", "got 1.5"],
    "run digits finetune=sgd:steps=0": ["finetune.steps must be", "got 0"],
    "run digits finetune=adam": ["Unknown fine-tuning 'adam'", "Known: sgd"],
    "run digits calibration=5": ["calibration must be", "got 5"],
    "run digits privacy=gaussian:noise=1": ["privacy needs clip", "privacy=gaussian:clip=0.5"],
    "run digits privacy=gaussian:clip=1:noise=1:delta=1": ["delta must be", "got 1"],
    "resume": ["Missing argument 'RUN'"],
    "resume nowhere": ["nowhere is not a run folder"],
    "resume runs/done": ["The run in runs/done is done", "nothing to resume"],
    "resume runs/done lr=0.1": ["lr cannot be changed", "engine"],
    "resume runs/done --workers 2": ["name=value", "write workers=2"],
    "runs nowhere": ["nowhere", "folder"],
    "track runs/done": ["Missing option '--to'"],
    "track runs/done --to mlfow": ["Unknown tracker 'mlfow'", "did you mean 'mlflow'?"],
    "track nowhere --to tensorboard": ["nowhere is not a run folder"],
    "report runs": ["Missing option '--out'"],
    "report nowhere --out r": ["no runs to report on", "nowhere: it does not exist"],
    "report runs --out runs": ["runs exists and is not a report", "--out"],
    "report runs --out r --last 0": ["--last must be a positive number", "got 0"],
    "list algorithm": ["Unknown kind 'algorithm'", "did you mean 'algorithms'?"],
    "paper soto": ["Unknown experiment 'soto'", "did you mean 'sota'?"],
    "paper sota --scale cpus": ["Unknown scale 'cpus'", "did you mean 'cpu'?"],
    "paper sota --seeds a": ["Expected seeds like 0,1,2 or 0-4", "got 'a'"],
    "paper sota --only femnst": ["did you mean 'femnist'?"],
    "paper sota --only fedavgg": ["'fedavgg'", "did you mean 'fedavg'?"],
    "paper sota --jobs 0": ["--jobs", "0 is not in the range"],
    "paper sota --cpus 2": ["--cpus is for SLURM jobs", "add --slurm"],
    "paper sota --watch": ["The folder runs/cpu does not exist"],
    "sweep digits --grid lr": ["Expected --grid key=value,value", "got 'lr'"],
    "sweep digits --grid lr=0.1,x": ["lr must be a number", "got 'x'"],
    "sweep digits --grid bs=5,10": ["Unknown setting 'bs'", "did you mean 'batch_size'?"],
    "sweep digits --grid algorithm=fedavg,prox": ["'prox'", "did you mean 'fedprox'?"],
    "sweep digits --seeds 3-1": ["Expected seeds like", "got '3-1'"],
    "sweep digits --rounds 3": ["name=value", "write rounds=3"],
    "average a.pt": ["Missing option '--out'"],
    "average 'run/*.pt' --out m.pt": ["No file matches 'run/*.pt'"],
    "average note.txt --out m.pt": ["note.txt: unknown kind of checkpoint", ".safetensors"],
    "average note.txt --out m.pt --window 0": ["--window must be a positive integer", "got 0"],
    "average note.txt --out m.pt --ema 2": ["--ema must be a number in [0, 1)", "got 2.0"],
    "average note.txt --out m.pt --order size": ["--order must be one of", "got 'size'"],
    "advise nowhere": ["Missing option '--eval'"],
    "advise runs/done --eval 'true {}'": ["The folder runs/done contains none of"],
    "advise note.txt --eval 'python e.py'": ["--eval must be a Python file", "got"],
    "advise note.txt --eval 'true {}' --windows x": [
        "--windows must be comma-separated numbers",
        "got 'x'",
    ],
    "window runs/done --window 2 --out m.safetensors": ["No such command 'window'"],
    "data lst": ["No such command 'lst'", "Did you mean 'list'?"],
    "data fetch mnist": ["'mnist'", "Known: cifar10,"],
    "data import femnist nowhere": ["nowhere", "no such file or folder", "expected a folder"],
    "data verify cifar10": ["cifar10 is not in the cache", "wima data fetch cifar10"],
    "data show digits --alpha x": ["alpha must be a number or 'iid'", "got 'x'"],
    "data show digits --clients 0": ["clients must be a positive integer", "got 0"],
    "flower run digit": ["Unknown preset 'digit'", "did you mean 'digits'?"],
    "flower run digits algorithm=FedProx": ["'FedProx'", "did you mean 'fedprox'?"],
    "flower run digits --rounds 3": ["name=value", "write rounds=3"],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run that is done."""
    path = tmp_path_factory.mktemp("mistakes") / "done"
    launch(load_settings("digits", ["rounds=1", "clients=10", "clients_per_round=1"]), path)
    return path


@pytest.fixture
def folder(tmp_path, finished) -> Path:
    """A folder with a run and a text."""
    shutil.copytree(finished, tmp_path / "runs" / "done")
    (tmp_path / "note.txt").write_text("no checkpoint")
    return tmp_path


@pytest.mark.parametrize("command", MISTAKES)
def test_a_wrong_command_says_what_is_wrong_and_writes_nothing(cli, folder, command, monkeypatch):
    if command.startswith("data verify"):  # no data in the cache
        monkeypatch.setenv("WIMA_DATA", str(folder.parent / "cache"))
    before = sorted(folder.rglob("*"))
    code, out, err = cli(*shlex.split(command))
    assert (code, out) == (2, "")
    assert "Error: " in err and "Traceback" not in err
    assert [words for words in MISTAKES[command] if words not in err] == []
    assert err.lower().count("did you mean") <= 1
    assert sorted(folder.rglob("*")) == before


def test_a_run_that_fails_ends_with_1(cli, folder):
    code, _, err = cli("run", "digits", "lr=1e30", "rounds=3", "clients=10", "clients_per_round=1")
    assert code == 1
    assert "Error: " in err and "diverged" in err and "Traceback" not in err


def test_all_wrong_settings_are_named_at_once(cli, folder):
    wrong = {
        "rounds=abc": "rounds must be an integer, got 'abc'.",
        "lr=-1": "lr must be a positive number, got -1.0.",
        "learning_rate=3": "Unknown setting 'learning_rate'; did you mean 'lr'?",
        "epochs=0": "epochs must be a positive integer, got 0.",
        "dropout=2": "dropout must be a number in [0, 1], got 2.0.",
        "window=0": "got 0.",
        "algorithm=fedavgg": "Unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        "engine=seriel": "Unknown engine 'seriel'; did you mean 'serial'?",
        "server": "Expected key=value without spaces, got 'server'.",
        "seed.x=3": "seed.something cannot be set.",
    }
    code, out, err = cli("run", "digits", *wrong)
    lines = err.removeprefix("Error: ").splitlines()
    assert (code, out) == (2, "") and len(lines) == len(wrong)
    for words in wrong.values():
        assert len([line for line in lines if words in line]) >= 1, words
