"""`wima data show`: the labels of clients, as a table and as a picture."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.fedjax_files import femnist_folder, writer
from wima.data.load import PUBLIC
from wima.data.sets.digits import digits

CLIENTS = {"anne": writer(4), "bert": writer(6, seed=1)}


@pytest.fixture
def cli(cli, tmp_path, monkeypatch):
    """Run `wima data ...` with an empty cache: exit code, output, errors."""
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    return lambda *arguments: cli("data", *map(str, arguments))


def rows_of(out):
    """The lines of the table of clients, split at spaces, by the number of the client."""
    table = out.partition("most frequent: label × count\n")[2]
    lines = [line.split(maxsplit=3) for line in table.splitlines()]
    return {int(line[0]): line[1:] for line in lines if line[0].isdigit()}


def test_show_counts_labels_by_their_names(cli, tmp_path):
    cli("import", "femnist", femnist_folder(tmp_path / "downloads", CLIENTS))
    code, out, _ = cli("show", "femnist")
    assert code == 0
    assert "femnist: 10 training and 10 test examples, each 1x28x28 (uint8); 62 classes" in out
    assert "2 clients with 4 to 6 examples, mean 5.0" in out
    names = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    labels, counts = np.unique(CLIENTS["anne"]["label"], return_counts=True)
    examples, classes, frequent = rows_of(out)[0]
    assert (int(examples), int(classes)) == (counts.sum(), len(labels))
    assert frequent.endswith("  (anne)")
    pairs = dict(pair.split(" × ") for pair in frequent.removesuffix("  (anne)").split(", "))
    assert pairs == {names[y]: str(n) for y, n in zip(labels, counts, strict=True)}


def test_show_lists_clients_from_the_first_to_the_last(cli):
    _, out, _ = cli("show", "digits", "--alpha", "0")
    assert list(rows_of(out)) == [round(n * 99 / 7) for n in range(8)]
    assert "8 of 100 clients" in out


def drawn(monkeypatch):
    """The figures that are saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (figures.append(f), save(f, *a, **k)))
    return figures


@pytest.mark.parametrize("clients", [10, 250])
def test_the_picture_has_the_share_of_every_label_of_at_most_100_clients(cli, monkeypatch, clients):
    figures = drawn(monkeypatch)
    code, out, _ = cli("show", "digits", "--alpha", "0.5", "--clients", clients)
    assert code == 0 and "Picture: digits.png" in out
    data = digits(clients, 0.5).train
    bars, heat, colours = figures[0].axes
    image = heat.images[0].get_array()
    shown = [round(n * (clients - 1) / 99) for n in range(100)] if clients > 100 else range(10)
    assert image.shape == (10, len(shown))
    for column, i in enumerate(shown):
        y = data.client(i)[1]
        assert list(image[:, column].filled(0)) == pytest.approx(
            [(y == k).mean() for k in range(10)]
        )
        assert bars.patches[column].get_height() == len(y)
    assert [label.get_text() for label in heat.get_yticklabels()] == list("0123456789")
    assert (heat.get_xlabel(), heat.get_ylabel(), bars.get_ylabel()) == (
        *("client", "label"),
        "examples",
    )
    assert "share" in colours.get_ylabel()


def test_a_picture_of_its_own_is_replaced_and_no_other(cli, tmp_path):
    picture = tmp_path / "digits.png"
    assert cli("show", "digits", "--alpha", "0")[0] == 0
    first = picture.read_bytes()
    assert cli("show", "digits", "--alpha", "iid")[0] == 0 and picture.read_bytes() != first
    for theirs in (b"notes", first.replace(b"wima", b"mine")):
        picture.write_bytes(theirs)
        code, _, errors = cli("show", "digits")
        assert code == 2 and "digits.png already exists" in errors
        assert picture.read_bytes() == theirs
    assert cli("show", "digits", "--force")[0] == 0 and picture.read_bytes() != theirs


def test_names_of_classes_are_the_publishers(cifar10_files, cifar100_files):
    for folder, file, names in (
        (cifar10_files, "batches.meta.txt", PUBLIC["cifar10"].labels),
        (cifar100_files, "fine_label_names.txt", PUBLIC["cifar100"].labels),
    ):
        assert tuple((folder / file).read_text().split()) == names
    for dataset in PUBLIC.values():
        assert len(dataset.labels) == len(set(dataset.labels))


def test_show_takes_a_split(cli):
    code, out, _ = cli("show", "digits", "--alpha", "iid", "--clients", 5, "--out", "a.png")
    assert code == 0 and "5 clients with 287 to 288 examples" in out  # 1437 = 2 * 288 + 3 * 287
    code, out, _ = cli("show", "digits", "--alpha", "0")
    assert code == 0 and "classes per client 1 to 1, mean 1.00" in out
    assert cli("show", "digits", "--alpha", "much")[0] == 2


@pytest.mark.parametrize("out", ["no/such/folder/sheet.png", "sheet.xyz"])
def test_show_refuses_a_picture_it_cannot_write(cli, out):
    code, _, errors = cli("show", "digits", "--out", out)
    assert code == 2 and out in errors
