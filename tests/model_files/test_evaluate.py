"""How `wima advise` reads a metric: from a user's function, or from what a command prints."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from wima.core.errors import RunError, UsageError
from wima.model_files.advise import Evaluator


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # scripts add their folders


def python(code: str) -> str:
    return f'{sys.executable} -c "{code}" {{}}'


@pytest.mark.parametrize(
    ("printed", "metric", "value"),
    [
        ("0.5", None, 0.5),
        ("epoch 3: accuracy 97.5\n-1.5e-3\n\n", None, -0.0015),
        ('{"accuracy": 0.9}', None, 0.9),
        ('{"loss": 3}\n{"loss": 0.2, "top-1": 0.9}', "top-1", 0.9),
    ],
)
def test_the_metric_is_the_json_in_the_last_line(printed, metric, value):
    command = [sys.executable, "-c", f"print({printed!r})", "{}"]
    assert Evaluator(shlex.join(command), metric)(Path("x.npz")) == value


def test_the_file_takes_the_place_of_the_braces_without_a_shell(tmp_path):
    name = tmp_path / "a file; $(touch gone).npz"
    np.savez(name, w=np.ones(4))
    command = python("import sys, numpy; print(numpy.load(sys.argv[1])['w'].sum())")
    assert Evaluator(command)(name) == 4


@pytest.mark.parametrize(
    ("text", "metric", "kind", "words"),
    [
        ("python eval.py", None, UsageError, r"--eval must be a Python file .* with \{\}"),
        ("python 'eval.py {}", None, UsageError, "cannot be split into words"),
        ("no-such-command {}", None, UsageError, "cannot run 'no-such-command': No such file"),
        (
            python("raise SystemExit('no such layer')"),
            None,
            RunError,
            "exit code 1.\nno such layer",
        ),
        (
            python("print('loaded epoch_012.pt')"),
            None,
            UsageError,
            r"its last line is: loaded epoch_012\.pt\nPrint the number, or",
        ),
        (python("pass"), None, UsageError, "it printed nothing"),
        (python("print('NaN')"), None, RunError, r"Read nan for x\.npz; expected a fin"),
        (
            python("print(3)"),
            "f1",
            UsageError,
            "Expected the metric 'f1' for x.npz, got an unnamed number",
        ),
        (
            python("import json; print(json.dumps(dict(a=1, b=2)))"),
            None,
            UsageError,
            "choose a or b with --metric",
        ),
    ],
)
def test_a_command_that_gives_no_metric_is_told(text, metric, kind, words):
    with pytest.raises(kind, match=words):
        Evaluator(text, metric)(Path("x.npz"))


def script(folder: Path, body: str) -> str:
    path = folder / "evaluate.py"
    path.write_text(body)
    return str(path)


def test_a_script_is_loaded_once_for_all_checkpoints(tmp_path):
    loads = tmp_path / "loads"
    body = (
        f"with open({str(loads)!r}, 'a') as file:\n    file.write('.')\n"
        "def evaluate(path):\n    return {'length': len(path), 'other': 0}\n"
    )
    told: list[str] = []
    evaluator = Evaluator(script(tmp_path, body), "length", told.append)
    names = ["x" * n for n in range(1, 31)]
    assert [evaluator(Path(name)) for name in names] == [len(name) for name in names]
    assert loads.read_text() == "."
    assert told == ["Read length=1 for x"]


def test_a_script_finds_the_modules_beside_it_and_may_return_any_number(tmp_path):
    (tmp_path / "beside.py").write_text("import numpy\nVALUE = numpy.float32(0.5)\n")
    body = "import beside\ndef evaluate(path):\n    return beside.VALUE\n"
    assert Evaluator(script(tmp_path, body))(Path("x")) == 0.5


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("x = 1", UsageError, r"must define a function evaluate\(path\)"),
        ("def evaluate(path): return path", UsageError, "must return a number .* got 'x.npz'"),
        ("def evaluate(path): return 1/0", RunError, r"line 1, in evaluate(.|\n)*ZeroDivisionErr"),
        ("import no_such_module", RunError, "ModuleNotFoundError: No module named 'no_such_module"),
        ("def evaluate(path): raise SystemExit('no data')", RunError, "SystemExit: no data"),
        ("def evaluate(path", RunError, "SyntaxError"),
    ],
)
def test_a_script_that_fails_is_told_without_our_own_lines(tmp_path, body, kind, words):
    with pytest.raises(kind, match=words) as caught:
        Evaluator(script(tmp_path, body))(Path("x.npz"))
    assert "wima/saved" not in str(caught.value)
    with pytest.raises(UsageError, match=r"none\.py does not exist"):
        Evaluator("none.py")
