"""An averaged Flower strategy keeps its window on disk, and a new server goes on with it."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import (
    FedAvg,
)

from tests.helpers.flower_toys import W, drawn, feed, mean, play, record, same
from wima import EMA, LAWA, SWA, WIMA, RunError, UsageError
from wima.flower import averaged

AVERAGERS = [WIMA(5), EMA(0.9), LAWA(3, 2), SWA(start=4, cycle=2)]


@pytest.mark.parametrize("stored", [{}, {"window_store": "files"}, {"store_dtype": "bfloat16"}])
@pytest.mark.parametrize("cut", [1, 7, 13])
def test_a_restarted_server_goes_on_with_its_window(tmp_path, stored, cut):
    models = drawn(20)
    whole = feed(averaged(FedAvg(), AVERAGERS, folder=tmp_path / "whole", **stored), models)
    options = {"folder": tmp_path / "cut", **stored}
    first = feed(averaged(FedAvg(), AVERAGERS, **options), models[:cut])
    first.close()
    again = averaged(FedAvg(), AVERAGERS, **options)
    assert again.averaging.seen == cut
    assert same(again.averaging.model("plain"), record(models[cut - 1]))
    second = feed(again, models[cut:])
    for name in whole.models():
        assert same(second.model(name), whole.model(name))


def test_storage_in_files_gives_the_same_averages_as_memory(tmp_path):
    models = drawn(30)
    memory = feed(averaged(FedAvg(), WIMA(12)), models)
    files = feed(averaged(FedAvg(), WIMA(12), folder=tmp_path, window_store="files"), models)
    assert same(files.model("wima12"), memory.model("wima12"))


def test_a_run_of_two_servers_is_one_run(tmp_path):
    options = {"folder": tmp_path / "state", "serve": "better", "patience": 2}
    first = averaged(FedAvg(), WIMA(W), **options)
    _, early = play(first, rounds=3)
    judged = first.averaging.serving
    first.averaging.close()
    second = averaged(FedAvg(), WIMA(W), **options)
    kept = second.averaging.serving
    assert (kept.average, kept.streak) == (judged.average, judged.streak)
    start = second.averaging.model("plain")
    assert same(start, early[3][0])
    _, late = play(second, rounds=2, start=start)
    assert same(late[0][1], early[3][1])  # the average is there before the first round
    models = [early[t][0] for t in (1, 2, 3)] + [late[t][0] for t in (1, 2)]
    assert same(late[2][1], mean(models[-W:]))


def test_state_of_other_averagers_or_damaged_is_refused(tmp_path):
    feed(averaged(FedAvg(), WIMA(5), folder=tmp_path), drawn(3)).close()
    with pytest.raises(UsageError, match=r"holds averages with averagers .*WIMA\(window=5"):
        averaged(FedAvg(), WIMA(6), folder=tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"No state in .* is whole"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)


def test_two_servers_do_not_share_a_folder(tmp_path):
    first = averaged(FedAvg(), WIMA(5), folder=tmp_path)
    with pytest.raises(UsageError, match="Another process is working on"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)
    first.averaging.close()
    averaged(FedAvg(), WIMA(5), folder=tmp_path)
