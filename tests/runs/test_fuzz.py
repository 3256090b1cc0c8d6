"""Files that anything may have happened to: an error that explains itself, or nothing.

WIMA_FUZZ=10000 tries that many of each kind; by default it is fewer, to save time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings as how, strategies as st

from wima.cli.tables import runs_table
from wima.core.errors import RunError, UsageError
from wima.report.summary import summarize
from wima.runs import checkpoint
from wima.runs.build import build
from wima.runs.folder import read_run
from wima.runs.launch import FOLDER, launch
from wima.runs.settings import Settings, make_settings, read_table
from wima.storage import manifests
from wima.storage.manifests import FORMAT
from wima.storage.segments import Segments

MANY = int(os.environ.get("WIMA_FUZZ", "200"))
slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
fuzz = how(max_examples=MANY, deadline=None, suppress_health_check=slow)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars | st.sampled_from(["../../x", "/etc/passwd", "digits", "wima:window=2"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
SMALL = {
    "data": "digits",
    "rounds": 2,
    "clients": 10,
    "clients_per_round": 2,
    "algorithm": "scaffold",
    "averagers": ["wima:window=2"],
    "engine": "serial",
}


def explains(error: Exception) -> None:
    assert str(error)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "run"
    launch(make_settings(SMALL), path)
    return path


@fuzz
@given(st.dictionaries(st.sampled_from(list(Settings.model_fields)) | st.text(max_size=8), values))
def test_any_table_makes_settings_or_an_error(table):
    try:
        made = make_settings(table)
    except UsageError as error:
        explains(error)
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
        explains(error)


def _places(tree, path=()):
    """Addresses of all values in nested dicts and lists."""
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, branch in items:
        yield from _places(branch, (*path, key))


def _changed(tree, path, value):
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = _changed(tree[path[0]], path[1:], value)
    return copy


@fuzz
@given(st.data())
def test_a_manifest_with_a_true_checksum_and_any_content(run, data):
    """As an attacker would write it: nothing outside the folder is read or written."""
    store = Segments(run / FOLDER)
    path = manifests.manifests(store.folder)[0]
    original = path.read_text()
    manifest = json.loads(original.split("\n")[0])
    place = data.draw(st.sampled_from(list(_places(manifest))))
    body = json.dumps(_changed(manifest, place, data.draw(values)))
    path.write_text(f"{body}\n{manifests._checksum(body)}\n")
    before = sorted(p for p in run.parent.rglob("*"))
    try:
        for found in manifests.find(store)[0]:
            with build(make_settings(SMALL), run / FOLDER) as simulation:
                checkpoint.load(simulation, store, found)
    except (RunError, UsageError) as error:
        explains(error)
    finally:
        path.write_text(original)
    assert sorted(p for p in run.parent.rglob("*")) == before
    assert manifest["format"] == FORMAT


@fuzz
@given(
    st.sampled_from(["records.jsonl", "status.json", "environment.json", "settings.toml"]),
    values.map(lambda v: json.dumps(v).encode() + b"\n") | st.binary(max_size=100),
    st.booleans(),
)
def test_a_run_folder_with_any_content_is_read_or_refused(run, name, content, append):
    file = run / name
    original = file.read_bytes()
    file.write_bytes(original + content if append else content)
    try:
        summarize(read_run(run))
    except UsageError as error:
        explains(error)
    finally:
        runs_table(run.parent)
        file.write_bytes(original)
