from __future__ import annotations

import pytest

from tests.lab.__main__ import main


@pytest.fixture
def last_line(capsys):
    """The last line of `python -m tests.lab` with some arguments, which must succeed."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        out = capsys.readouterr().out
        assert end.value.code == 0, out
        return out.splitlines()[-1]

    return run
