"""Settings: texts, tables and overrides mean the same, and survive the way to a file and back."""

from __future__ import annotations

import os
import tomllib

import hypothesis
import pytest
from hypothesis import strategies as st

from wima.algorithms.server_opt import SGD
from wima.core.errors import UsageError
from wima.runs.mistakes import MEANT
from wima.runs.settings import (
    NAMES,
    Choice,
    Settings,
    load_settings,
    make_settings,
    parse_override,
    presets,
    read_table,
)


def test_a_choice_as_text_equals_the_choice_as_table():
    text = Choice.model_validate("wima:window=50:part=classifier")
    table = Choice.model_validate({"name": "wima", "window": 50, "part": "classifier"})
    assert text == table
    assert text.parameters == {"window": 50, "part": "classifier"}
    assert Choice.model_validate(str(table)) == table


def test_a_choice_makes_what_it_names():
    made = Choice.model_validate("sgd:lr=0.5:momentum=0.9:nesterov=true").make("server")
    assert made == SGD(lr=0.5, momentum=0.9, nesterov=True)


def test_a_choice_of_something_unknown_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="Unknown averager 'wimma'; did you mean 'wima'"):
        Choice(name="wimma").make("averagers")
    with pytest.raises(UsageError, match="hyper-parameter of wima 'size'"):
        Choice.model_validate("wima:size=3").make("averagers")


@pytest.mark.parametrize(
    ("window", "averagers"),
    [(50, ["wima:window=50"]), ([5, 50], ["wima:window=5", "wima:window=50"])],
)
def test_window_is_short_for_wima_averagers(window, averagers):
    assert make_settings({"window": window}) == make_settings({"averagers": averagers})


def test_window_and_averagers_together_are_refused():
    with pytest.raises(UsageError, match="window or averagers, not both"):
        make_settings({"window": 5, "averagers": ["wima:window=5"]})


def test_a_window_override_replaces_the_presets_averagers():
    settings = load_settings("digits", ["window=7"])
    assert settings.averagers == [Choice.model_validate("wima:window=7")]


def test_one_averager_needs_no_list_and_none_is_possible():
    assert make_settings({"averagers": "wima:window=3"}) == make_settings({"window": 3})
    assert make_settings({"averagers": []}).averagers == []
    assert load_settings("digits", ["averagers="]).averagers == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=12", ("rounds", 12)),
        ("lr=0.5", ("lr", 0.5)),
        ("lr=1e-3", ("lr", 1e-3)),
        ("nesterov=true", ("nesterov", True)),
        ("data=digits", ("data", "digits")),
        ('data="digits"', ("data", "digits")),
        ("data=a/b.npz", ("data", "a/b.npz")),
        ("window=2,4", ("window", [2, 4])),
        ("window=[2, 4]", ("window", [2, 4])),
        (
            "averagers=wima:window=2,wima:window=4",
            ("averagers", ["wima:window=2", "wima:window=4"]),
        ),
        ("server.momentum=0.9", ("server.momentum", 0.9)),
        ("data=a=b.npz", ("data", "a=b.npz")),
    ],
)
def test_an_override_is_read_as_toml_or_else_as_text(text, expected):
    assert parse_override(text) == expected
    assert type(parse_override(text)[1]) is type(expected[1])


@pytest.mark.parametrize("text", ["rounds", "", "=3"])
def test_an_override_without_key_or_sign_is_refused(text):
    with pytest.raises(UsageError, match=f"Expected key=value without spaces, got '{text}'"):
        parse_override(text)


def test_dotted_overrides_reach_into_texts_tables_and_defaults(tmp_path):
    for given in ('server = "sgd:lr=0.5"', 'server = {name = "sgd", lr = 0.5}'):
        (tmp_path / "s.toml").write_text(given)
        settings = load_settings(str(tmp_path / "s.toml"), ["server.momentum=0.9"])
        assert settings.server == Choice.model_validate("sgd:lr=0.5:momentum=0.9")
    (tmp_path / "s.toml").write_text("")
    settings = load_settings(str(tmp_path / "s.toml"), ["server.momentum=0.9"])
    assert settings.server == Choice.model_validate("sgd:momentum=0.9")
    assert Settings().server == Choice(name="sgd"), "the default itself stays"


def test_the_order_of_overrides_is_kept():
    assert load_settings("digits", ["lr=0.5", "lr=0.25"]).lr == 0.25


def test_the_last_of_two_ways_to_say_the_algorithm_wins_where_it_speaks():
    settings = load_settings("digits", ["server=sgd:lr=0.5", "server.momentum=0.9"])
    assert settings.server.parameters == {"lr": 0.5, "momentum": 0.9}


ROUND_TRIPS = [
    {},
    {"window": [2, 4]},
    {"averagers": ["wima:window=3:part=classifier"]},
    {"averagers": []},
    {"alpha": "iid"},
    {"alpha": 0.3, "lr": 1},
    {"batch_size": "full", "clip": 0.5},
    {"steps": 7, "workers": 2, "engine": "processes"},
    {"server": "sgd:momentum=0.9:nesterov=true", "algorithm": {"name": "fedavg"}},
    {"data": 'odd "name"\\ü.npz', "weighting": "uniform", "last_batch": "short"},
]


@pytest.mark.parametrize("table", ROUND_TRIPS, ids=str)
def test_settings_survive_the_way_to_toml_and_back(table):
    settings = make_settings(table)
    again = make_settings(tomllib.loads(settings.to_toml()))
    assert again == settings
    assert again.run_id == settings.run_id


def test_settings_in_toml_name_every_choice_so_that_defaults_may_change():
    written = tomllib.loads(Settings().to_toml())
    unset = {name for name, field in Settings.model_fields.items() if field.default is None}
    assert set(written) == set(Settings.model_fields) - unset


@pytest.mark.parametrize(
    "change", [{"lr": 0.2}, {"seed": 1}, {"window": 3}, {"server": "sgd:momentum=0.5"}]
)
def test_the_run_id_changes_with_all_that_changes_results(change):
    assert make_settings(change).run_id != Settings().run_id


def test_settings_of_earlier_versions_may_name_the_collective_that_is_left(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('collective = "gather"\nrounds = 7\n')
    assert load_settings(str(file), []).rounds == 7
    file.write_text('collective = "reduce"\nrounds = 7\n')
    with pytest.raises(UsageError, match="collective=reduce was removed; remove this setting"):
        load_settings(str(file), [])


@pytest.mark.parametrize("change", [{"engine": "reference"}, {"workers": 2}])
def test_the_run_id_does_not_change_with_the_engine(change):
    assert make_settings(change).run_id == Settings().run_id


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"rounds": "abc"}, "rounds must be .* got 'abc'"),
        ({"rounds": 2.5}, "rounds must be .* got 2.5"),
        ({"rounds": True}, "rounds must be .* got True"),
        ({"lr": "fast"}, "lr must be .* got 'fast'"),
        ({"roundz": 3}, "Unknown setting 'roundz'; did you mean 'rounds'"),
        ({"last_batch": "long"}, "last_batch must be .*'fill' or 'short', got 'long'"),
        ({"algorithm": 3}, "algorithm must be .* got 3"),
        ({"averagers": [3]}, "averagers must be .* got 3"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(table, words):
    with pytest.raises(UsageError, match=words):
        make_settings(table)


def test_every_mistake_is_named_at_once():
    with pytest.raises(UsageError) as caught:
        make_settings({"rounds": "abc", "roundz": 3})
    assert "'abc'" in str(caught.value) and "'roundz'" in str(caught.value)


@pytest.mark.parametrize("override", ["seed.x=3", "averagers.window=3", "lr.x=1"])
def test_a_dotted_override_of_a_plain_setting_is_refused(override):
    with pytest.raises(UsageError, match="has no hyper-parameters"):
        load_settings("digits", [override])


@pytest.mark.parametrize("name", presets())
def test_every_preset_holds_known_settings_only(name):
    table = read_table(name)
    settings = load_settings(name, [])
    assert settings == make_settings(table)
    assert {"data", "model", "rounds"} <= set(table)


def test_what_an_override_says_replaces_the_file(tmp_path):
    (tmp_path / "s.toml").write_text("window = 50\nlr = 0.5\n")
    settings = load_settings(str(tmp_path / "s.toml"), ["averagers=wima:window=2"])
    assert settings.averagers == [Choice.model_validate("wima:window=2")]
    assert settings.lr == 0.5


def test_a_split_replaces_the_presets_alpha_and_the_other_way_round(tmp_path):
    assert load_settings("cifar10", []).alpha is not None
    made = load_settings("cifar10", ["split=splits.npz:client_alpha_0.05"])
    assert (made.alpha, made.split) == (None, "splits.npz:client_alpha_0.05")
    (tmp_path / "s.toml").write_text('split = "splits.npz"')
    made = load_settings(str(tmp_path / "s.toml"), ["alpha=0.1"])
    assert (made.alpha, made.split) == (0.1, None)


@pytest.mark.parametrize("none", ["none", "None"])
def test_none_unsets_what_need_not_be_set(tmp_path, none):
    assert load_settings("cifar10", [f"alpha={none}"]).alpha is None
    (tmp_path / "s.toml").write_text(f'alpha = "{none}"\nclip = "{none}"')
    made = load_settings(str(tmp_path / "s.toml"), [])
    assert (made.alpha, made.clip) == (None, None)
    with pytest.raises(UsageError, match="rounds must be an integer, got"):
        load_settings("digits", [f"rounds={none}"])


def test_words_that_others_use_lead_to_settings_and_are_none_themselves():
    for word, name in MEANT.items():
        assert word not in NAMES
        assert name == "--out" or name.partition(".")[0] in NAMES
        with pytest.raises(UsageError, match=f"'{word}'; did you mean '{name}'"):
            make_settings({word: 1})


texts = st.text(st.characters(codec="utf-8"), max_size=5)
nested = st.recursive(
    st.booleans() | st.integers() | st.floats() | texts | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@hypothesis.given(st.dictionaries(texts.filter(lambda key: key != "name"), nested, max_size=4))
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_parameters_are_written_as_they_are_read_back(parameters):
    made = make_settings({"data": {"name": "digits", **parameters}})
    again = make_settings(tomllib.loads(made.to_toml()))
    assert in_order(again.data.parameters) == in_order(made.data.parameters)
    assert again.run_id == made.run_id


def in_order(value) -> str:
    """A text that is the same for NaN and NaN, and for any order of keys."""
    if isinstance(value, dict):
        return str(sorted((key, in_order(inner)) for key, inner in value.items()))
    return str([in_order(v) for v in value]) if isinstance(value, list) else repr(value)


def test_a_text_that_is_no_text_is_refused():
    with pytest.raises(UsageError, match="values that TOML can represent"):
        make_settings({"data": {"name": "digits", "x": "\ud800"}})


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "[inf]", "1979-05-27", "{a = nan}"])
def test_odd_values_are_refused_by_what_they_are_given_to(cli, value):
    code, out, err = cli("run", "digits", f"data.metric={value}")
    assert code == 2 and "Error: " in err and "Traceback" not in out + err


@pytest.mark.parametrize("text", [f"a = {'1' * 5000}", f"a = {'[' * 5000}", "a = \0"])
def test_a_file_that_toml_cannot_hold_is_refused(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UsageError, match=r"a\.toml is not valid TOML"):
        read_table(str(tmp_path / "a.toml"))


def test_a_pipe_is_no_settings_file(tmp_path):
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(UsageError, match="Cannot read"):
        read_table(str(tmp_path / "a.toml"))


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000])
def test_values_that_toml_cannot_read_are_texts(value):
    assert parse_override(f"a={value}")[0] == "a"
