"""Files and settings that anything may have happened to: an error that explains itself, or nothing.

`python -m tests.lab --fuzz 10000` tries more of them.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings as how, strategies as st

from tests.lab.formats import FORMATS
from tests.lab.fuzz import MUTATIONS, mutate, outcome
from wima.core.errors import UsageError
from wima.runs.settings import Settings, make_settings, read_table

slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
fuzz = how(max_examples=100, deadline=None, suppress_health_check=slow)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars | st.sampled_from(["../../x", "/etc/passwd", "digits", "wima:window=2"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.lab
def test_damaged_files_of_every_kind_are_read_or_refused(last_line):
    kind, *ends = last_line("--fuzz", "150").split()
    assert kind == "all" and sum(map(int, ends)) == 150
    read, refused, *bad = map(int, ends)
    assert read and refused and not any(bad)


def test_the_fuzzer_notices_what_goes_wrong(tmp_path, monkeypatch):
    def failing(error):
        def read(folder):
            raise error

        return FORMATS["settings"]._replace(read=read)

    errors = {"traceback": KeyError("x"), "over memory": MemoryError(), "refused": UsageError("x")}
    for end, error in errors.items():
        monkeypatch.setitem(FORMATS, "broken", failing(error))
        assert outcome("broken", tmp_path)[0] == end


@pytest.mark.parametrize("damage", MUTATIONS)
def test_every_damage_takes_any_content(damage):
    draw = random.Random(0)
    for content in (b"", b"x", b'{"a": [1, 2.5, "text"]}\n', bytes(range(256))):
        assert all(isinstance(damage(content, draw), bytes) for _ in range(20))
    assert mutate(b"{}", random.Random(1)) == mutate(b"{}", random.Random(1))


@fuzz
@given(st.dictionaries(st.sampled_from(list(Settings.model_fields)) | st.text(max_size=8), values))
def test_any_table_makes_settings_or_an_error(table):
    try:
        made = make_settings(table)
    except UsageError as error:
        assert str(error)  # noqa: PT017
    else:
        assert isinstance(made, Settings) and made.run_id


@fuzz
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_text_is_a_settings_file_or_an_error(tmp_path, content):
    file = tmp_path / "settings.toml"
    file.write_bytes(content)
    try:
        make_settings(read_table(str(file)))
    except UsageError as error:
        assert str(error)  # noqa: PT017
