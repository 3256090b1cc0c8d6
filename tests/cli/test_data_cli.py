"""`wima data`: list, import, verify, and fetch over real HTTP from this machine."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.helpers.fedjax_files import FEMNIST_FILES, femnist_folder, write_fedjax, writer
from wima.data.cache import Remote, fetch, open_ready
from wima.data.load import PUBLIC
from wima.data.sets.femnist import FEMNIST

CLIENTS = {"anne": writer(4), "bert": writer(6, seed=1)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cli(cli, cache):
    """Run `wima data ...` with an empty cache: exit code, output, errors."""
    return lambda *arguments: cli("data", *map(str, arguments))


@pytest.fixture
def source(tmp_path):
    """A folder as one downloads it."""
    return femnist_folder(tmp_path / "downloads", CLIENTS)


class Server(ThreadingHTTPServer):
    """Serves `files`, name -> content; `cut` of them ends early, as when a line breaks."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name = self.path[1:]
        self.server.asked.append(name)
        content = self.server.files.get(name)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: -100 if name in self.server.cut else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def publisher(server, source, monkeypatch):
    """FEMNIST as if published on a server, with checksums."""
    server.files = {name: (source / name).read_bytes() for name in FEMNIST_FILES}
    files = tuple(
        Remote(server.url + name, "sha256:" + hashlib.sha256(content).hexdigest())
        for name, content in server.files.items()
    )
    monkeypatch.setitem(PUBLIC, "femnist", replace(FEMNIST, files=files))
    return server


def everything(folder):
    """All files below a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_list_shows_every_data_set_and_which_are_ready(cli, source, cache):
    code, out, _ = cli("list")
    states = {line.split()[0]: line.split()[1] for line in out.splitlines()[:-1]}
    names = {"digits", "landmarks", *PUBLIC}
    assert code == 0 and states == dict.fromkeys(names, "-") | {"digits": "ready"}
    assert str(cache) in out.splitlines()[-1]


def femnist_line(cli):
    return next(line for line in cli("list")[1].splitlines() if line.startswith("femnist"))


def test_list_says_how_much_of_a_data_set_was_imported(cli, source, cache, monkeypatch):
    cli("import", "femnist", source)
    line = femnist_line(cli)
    assert line.split()[1] == "part" and line.endswith(f"here: {len(CLIENTS)} of them")
    monkeypatch.setitem(PUBLIC, "femnist", replace(FEMNIST, clients=len(CLIENTS)))
    assert femnist_line(cli).split()[1] == "ready" and "here" not in femnist_line(cli)
    (cache / "ready" / "femnist" / "meta.json").write_text("{")
    assert femnist_line(cli).split()[1] == "damaged"


def test_import_twice_gives_the_new_files(cli, source, cache):
    code, out, _ = cli("import", "femnist", source)
    assert code == 0 and out.strip() == f"femnist: ready in {cache / 'ready' / 'femnist'}"
    before = everything(cache)
    femnist_folder(source, {"carl": writer(3)})
    assert cli("import", "femnist", source)[0] == 0
    assert open_ready("femnist")[1]["names"] == ["carl"] and everything(cache) == before
    assert [path.name for path in (cache / "ready").iterdir()] == ["femnist"]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("femnist", lambda path: path / "nowhere", "no such file or folder; expected a folder"),
        ("femnist", lambda path: path / FEMNIST_FILES[0], "expected the folder that holds"),
        ("cifar10", lambda path: path, "no file data_batch_1.bin in this folder"),
        ("femnst", lambda path: path, "did you mean 'femnist'?"),
        ("digits", lambda path: path, "Unknown data set"),
    ],
)
def test_import_refuses_what_is_not_the_data_set(cli, source, cache, name, make, message):
    code, out, errors = cli("import", name, make(source))
    assert code == 2 and message in errors and not out
    assert everything(cache) == []


def test_import_checks_the_publishers_checksum(cli, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(b"some other archive")
    code, _, errors = cli("import", "cifar10", path)
    assert code == 2 and f"{path}: its checksum is not the published one" in errors


def test_a_failed_import_leaves_what_was_there(cli, source, cache):
    cli("import", "femnist", source)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    write_fedjax(source / FEMNIST_FILES[1], CLIENTS, bert=b"damaged")
    code, _, errors = cli("import", "femnist", source)
    assert code == 2 and "federated_emnist_test.sqlite: the data of client bert" in errors
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("file", ["x", "y", "x_test", "y_test", "offsets"])
@pytest.mark.parametrize("at", [-1, 20])  # a number, or the array's header
def test_verify_finds_one_flipped_byte(cli, source, cache, file, at):
    cli("import", "femnist", source)
    code, out, _ = cli("verify", "femnist")
    assert code == 0 and "as written" in out
    path = cache / "ready" / "femnist" / f"{file}.npy"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    code, _, errors = cli("verify", "femnist")
    assert code == 1 and str(path) in errors


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_verify_finds_a_file_that_is_gone_or_empty(cli, source, cache, damage):
    cli("import", "femnist", source)
    damage(cache / "ready" / "femnist" / "y_test.npy")
    code, _, errors = cli("verify", "femnist")
    assert code == 1 and "y_test.npy" in errors


def test_verify_finds_a_downloaded_file_that_has_changed(cli, publisher, cache):
    cli("fetch", "femnist")
    path = cache / "raw" / "femnist" / FEMNIST_FILES[0]
    assert f"{path}: as published" in cli("verify", "femnist")[1]
    path.write_bytes(path.read_bytes() + b"!")
    code, out, errors = cli("verify", "femnist")
    assert code == 1 and f"{path}: DAMAGED" in out and str(path) in errors


def test_verify_says_how_to_get_what_is_not_there(cli):
    code, _, errors = cli("verify", "femnist")
    assert code == 2 and "`wima data fetch femnist`" in errors


def test_fetch_downloads_checks_and_prepares(cli, publisher, cache):
    code, out, _ = cli("fetch", "femnist")
    assert code == 0 and f"femnist: ready in {cache / 'ready' / 'femnist'}" in out
    assert open_ready("femnist")[1]["names"] == ["anne", "bert"]
    assert {p.name: p.read_bytes() for p in (cache / "raw/femnist").iterdir()} == publisher.files
    asked = len(publisher.asked)
    assert cli("fetch", "femnist")[0] == 0 and len(publisher.asked) == asked  # nothing twice


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (lambda server, name: server.files.update({name: b"other"}), "is not the published file"),
        (lambda server, name: server.cut.add(name), "cannot be downloaded"),
        (lambda server, name: server.files.pop(name), "404"),
    ],
    ids=["wrong checksum", "broken line", "missing file"],
)
def test_a_failed_fetch_says_what_to_do_and_the_next_one_succeeds(
    cli, publisher, cache, cause, message
):
    whole = dict(publisher.files)
    cause(publisher, FEMNIST_FILES[1])
    code, _, errors = cli("fetch", "femnist")
    assert code == 2 and message in errors and publisher.url + FEMNIST_FILES[1] in errors
    assert str(cache / "raw" / "femnist") in errors and "wima data import femnist" in errors
    assert FEMNIST.expects in errors
    assert everything(cache) == [FEMNIST_FILES[0]]  # whole, and not to be fetched again
    publisher.files, publisher.cut = whole, set()
    publisher.asked.clear()
    assert cli("fetch", "femnist")[0] == 0 and publisher.asked == [FEMNIST_FILES[1]]


def test_without_a_checksum_a_broken_line_is_noticed_too(cli, publisher, cache, monkeypatch):
    remotes = tuple(remote._replace(digest=None) for remote in PUBLIC["femnist"].files)
    monkeypatch.setitem(PUBLIC, "femnist", replace(FEMNIST, files=remotes))
    publisher.cut.add(FEMNIST_FILES[0])
    code, _, errors = cli("fetch", "femnist")
    assert code == 2 and "cannot be downloaded" in errors and everything(cache) == []


def test_without_a_network_fetch_says_where_to_put_the_files(cli, publisher, source, cache):
    publisher.shutdown()
    publisher.server_close()
    code, _, errors = cli("fetch", "femnist")
    folder = cache / "raw" / "femnist"
    assert code == 2 and f"copy it to {folder}" in errors and everything(cache) == []
    for name in FEMNIST_FILES:
        (folder / name).write_bytes((source / name).read_bytes())
    assert cli("fetch", "femnist")[0] == 0


def test_a_cache_that_cannot_be_written_is_said(cli, source, cache, publisher):
    cache.write_text("a file where the folder should be")
    for command in (("import", "femnist", source), ("fetch", "femnist")):
        code, _, errors = cli(*command)
        assert code == 2 and str(cache) in errors


def test_a_damaged_download_is_fetched_again(publisher, cache):
    fetch("femnist", PUBLIC["femnist"].files, FEMNIST.expects)
    path = cache / "raw" / "femnist" / FEMNIST_FILES[0]
    path.write_bytes(b"half")
    fetch("femnist", PUBLIC["femnist"].files, FEMNIST.expects)
    assert path.read_bytes() == publisher.files[path.name]
