"""Small measurements of wima alone: python -m benchmarks --micro windows.

`MICRO` is the table of them. A measurement is a function that yields its cases; a case is

- a function, which is called in turns with the others in this process,
- a `Player`, a process that plays rounds in turns with the others (see `turns`), or
- a `Command`, a process that is started once per turn.

All have the same columns: the best and the median over turns, the median ratio to the first case
in the same turn, and, of processes, the peak memory and what they have to say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.turns import FOREVER, Over, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, cache, load, prepare

ROOT = Path(__file__).parents[1]


class Player(NamedTuple):
    """Plays `function(*arguments)`, which calls `turns.after` at the end of each round."""

    function: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # of benchmarks/peers; None: ours


class Command(NamedTuple):
    """A fresh interpreter with this code, and what to do before it starts."""

    code: str
    arguments: tuple[str, ...] = ()
    before: Callable[[], object] = lambda: None


Case = Callable[[], object] | Player | Command
Cases = Iterator[tuple[str, Case]]


class Measurement(NamedTuple):
    title: str
    text: str
    cases: Callable[..., Cases]
    unit: str = "ms"
    rounds: int = 1  # calls, or rounds, per turn


# Averaging.

LENGTHS = (10, 100, 1000)


def windows(
    folder: Path, parameters: int = 1_206_590, lengths: Sequence[int] = (10, 100, 1000)
) -> Cases:
    import torch

    from wima.averaging import WIMA, Averages

    five, w = (10, 20, 50, 100, 200), torch.randn(parameters)
    sets = {"five windows: " + ", ".join(map(str, five)): five}
    sets |= {f"W = {length:,}": (length,) for length in lengths}
    for case, chosen in sets.items():
        watch = Averages({f"wima{n}": WIMA(n) for n in chosen}, torch.zeros(parameters))
        for _ in range(max(chosen) + 1):
            watch.update(w)
        yield case, partial(watch.update, w)


def buckets(folder: Path, parameters: int = 1_000_000, models: int = 10_000, k: int = 2) -> Cases:
    import torch

    from wima.averaging.wima import AutoWindow
    from wima.storage.states import Buffers

    auto, v = AutoWindow(k), torch.randn(parameters)
    small = fullest = auto.init(torch.zeros(1))
    for _ in range(models):  # the last round in which there are most sums
        small = auto.update(small, torch.zeros(1), None)  # type: ignore[arg-type]
        fullest = max(small, fullest, key=lambda state: len(state.buckets.sizes))
    sums = tuple(torch.randn(parameters, dtype=torch.float64) for _ in fullest.buckets.sizes)
    fullest = fullest._replace(buckets=fullest.buckets._replace(sums=sums, spare=Buffers()))

    def update() -> None:  # of the merges, all but one in 256 happen as often as in a whole run
        state = fullest._replace(
            buckets=fullest.buckets._replace(sums=tuple(s.clone() for s in sums), spare=Buffers())
        )
        for _ in range(256):
            state = auto.update(state, v, None)  # type: ignore[arg-type]

    yield "256 updates", update
    yield f"scores of all windows, from {len(sums)} sums", lambda: auto.use_gradient(fullest, v)
    yield f"mean over {len(sums)} sums", lambda: fullest.buckets.mean(len(sums))


def loop(
    folder: Path, parameters: int = 5_000_000, windows: Sequence[int] = (10, 100, 1000)
) -> Cases:
    import torch
    from torch import nn

    import wima

    touched = 40  # rows of a ring that are written: more than caches hold, less than memory does
    wide = parameters // 16 - 256  # sixteen weights and as many small tensors, as networks have
    model = nn.ParameterList([torch.randn(size) for _ in range(16) for size in (wide, 256)])
    vector = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    rows, turn = torch.zeros(touched, len(vector)), iter(range(10**9))
    yield "copy", lambda: rows[next(turn) % touched].copy_(vector)

    def step(average: wima.WindowAverage) -> None:
        ring, window = average._past, average.windows[-1]
        if ring.count % window >= touched:
            ring.count = window
            for one in ring._rings.values():
                one.restart(window)
        average.update()

    places: dict[str, dict[str, Any]] = {"in memory": {}, "in a file": {"folder": folder}}
    places["in memory, bfloat16"] = {"dtype": torch.bfloat16}
    for place, options in places.items():
        for window in windows:
            average = wima.WindowAverage(model, window, **options)
            for _ in range(touched):
                step(average)
            yield f"W = {window:,}, {place}", partial(step, average)
    average = wima.WindowAverage(model, touched)
    for _ in range(touched):
        average.update()
    for length in sorted({min(window, touched) for window in windows}):
        yield f"mean of {length}, on demand", partial(average.tensors, length)


def average_files(folder: Path, files: int = 100, unit: int = 1000) -> Cases:
    import numpy as np
    import torch
    from safetensors.torch import save_file

    shapes = {"embedding": (2 * unit, unit), "a": (unit, unit), "b": (unit, unit)}
    for step in range(1, files + 1):
        tensors = {n: torch.randn(shape) for n, shape in {**shapes, "c": (unit, unit)}.items()}
        save_file(tensors, folder / f"step_{step}.safetensors")
        np.savez(folder / f"step_{step}.npz", **{n: t.numpy() for n, t in tensors.items()})
        torch.save(tensors, folder / f"step_{step}.pt")
    yield "`import torch`", Command("import torch")
    for ending in ("safetensors", "npz", "pt"):
        paths = [str(path) for path in folder.glob(f"step_*.{ending}")]
        words = ("average", f"{folder}/step_*.{ending}", "--window", str(files), "--force")
        for cached, before in (("empty", _forget), ("warm", _read)):
            ready = partial(before, paths)
            code = "import sys; from benchmarks.micro import _read; _read(sys.argv[1:])"
            yield f"reading .{ending} alone, cache {cached}", Command(code, (*paths,), ready)
            out = ("--out", f"{folder}/mean.{ending}")
            case = f"`wima average`, .{ending}, cache {cached}"
            yield case, Command(COMMAND, (*words, *out), ready)


def _read(paths: Sequence[str]) -> None:
    block = bytearray(2**20)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass


def _forget(paths: Sequence[str]) -> None:
    """Let the system drop the files from its cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Simulations.


def _simulate(name: str, **options: Any) -> Any:
    """A simulation of a workload, without evaluation unless the options ask for it."""
    import numpy as np

    import wima
    from benchmarks.models import make_tuned

    workload, arrays = WORKLOADS[name], load(name)
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    task = wima.make_task(make_tuned(name), data, options.pop("test", arrays[2:]))
    common = {"clients_per_round": COHORT, "lr": workload.lr, "batch_size": workload.batch}
    return wima.simulate(task, **{"rounds": FOREVER, "eval_every": 0, **common, **options})


def _play_rounds(simulation: Any, turns: Turns, report: Callable[..., Any] = lambda t: 0) -> None:
    with simulation:
        for record in simulation:
            turns.after(partial(report, record.t))


def clients(folder: Path, counts: Sequence[int] = (100, 3_400, 100_000, 1_000_000)) -> Cases:
    for algorithm in ("FedAvg", "Scaffold"):
        for count in counts:
            yield f"{algorithm}, {count:,} clients", Player("many", (algorithm, str(count)))


def many(algorithm: str, clients: str) -> None:
    """So many clients with 15 examples each, all zero, in sparse files: no room on the disk."""
    turns = Turns()
    import numpy as np

    import wima
    from wima.data.federated import open_mapped
    from wima.models import MLP

    count, samples = int(clients), 15
    folder = cache() / "data" / f"clients-{count}x{samples}"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"x": ((count * samples, 1, 8, 8), "float32"), "y": ((count * samples,), "int64")}
    for name, (shape, dtype) in arrays.items():
        if not (folder / f"{name}.npy").exists():
            np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape).flush()
    x, y = (open_mapped(folder / f"{name}.npy") for name in arrays)
    data = wima.FederatedData(x, y, np.arange(count + 1) * samples)
    task = wima.make_task(MLP, data, (np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64)))
    how = {"clients_per_round": COHORT, "lr": 0.1, "batch_size": samples, "engine": "serial"}
    method = getattr(wima, algorithm)()
    _play_rounds(wima.simulate(task, method, rounds=FOREVER, eval_every=0, **how), turns)


def evaluation(folder: Path) -> Cases:
    prepare("femnist")
    yield "the forward passes alone, one process", Player("forward", ("1",))
    yield "the forward passes alone, two processes, a model each", Player("forward", ("2",))
    yield "rounds without evaluation", Player("evaluated", ("0",))
    yield "rounds with plain and WIMA evaluated", Player("evaluated", ("1",))


IMAGES = 2000


def evaluated(every: str) -> None:
    turns = Turns()
    import wima

    arrays = load("femnist")
    options = {"test": (arrays.x[:IMAGES], arrays.y[:IMAGES]), "eval_every": int(every)}
    _play_rounds(_simulate("femnist", averagers=[wima.WIMA(100)], **options), turns)


def forward(processes: str) -> None:
    """Both models' forward passes; with two processes, each has one of the models."""
    turns = Turns()
    with _helper(processes) as other:
        passes = _passes()
        while True:
            print("go", file=other.stdin, flush=True)
            passes()
            other.stdout.readline() if processes == "2" else passes()
            turns.after(lambda: 0)


@contextmanager
def _helper(processes: str) -> Iterator[Any]:
    code = "from benchmarks import micro; micro.help_out()" if processes == "2" else "input()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as process:
        yield process


def help_out() -> None:
    passes = _passes()
    for _ in sys.stdin:
        passes()
        print("done", flush=True)


def _passes() -> Callable[[], None]:
    import torch

    from wima.models import FemnistCNN

    torch.set_num_threads(1)
    model, x = FemnistCNN().eval(), torch.from_numpy(load("femnist").x[:IMAGES])

    @torch.inference_mode()
    def passes() -> None:
        for batch in x.split(500):
            model(batch)

    return passes


def detail(folder: Path, images: int = 2048, each: int = 16) -> Cases:
    import numpy as np

    import wima
    from wima.models import FemnistCNN
    from wima.simulation.measures.calibration import Calibration
    from wima.simulation.measures.clients import Clients

    draw, owners = np.random.default_rng(0), np.arange(images) // each
    test = draw.random((images, 1, 28, 28), dtype=np.float32), draw.integers(62, size=images)
    data = wima.FederatedData.from_arrays(*test, owners)
    task: Any = wima.make_task(FemnistCNN, data, test, test_clients=owners)
    metric = task.evaluate.leading
    more = {"clients": Clients(metric), "calibration": Calibration(metric)}
    evaluate = task.evaluate.changed(measures={**task.evaluate.measures, **more})
    models = [task.init(seed) for seed in (0, 1)]

    def passes(names: list[str]) -> None:
        parts = [evaluate.piece(k, models, names) for k in range(evaluate.pieces(names))]
        for model in range(len(models)):
            for name in names:
                evaluate.measures[name].combine([part[model][name] for part in parts])

    cases: dict[str, list[str]] = {"pooled metrics": [], "and of each client": ["clients"]}
    cases |= {"and calibration": ["calibration"], "and both": [*more]}
    for case, names in cases.items():
        yield case, partial(passes, ["metrics", *names])


def distributed(folder: Path, names: Sequence[str] = ("digits", "femnist")) -> Cases:
    for name in names:
        prepare(name)
        yield f"{name}, `processes`, two workers", Player("workers", (name,))
        yield f"{name}, `distributed`, two ranks", Player("ranks", (name,))


def workers(name: str) -> None:
    turns = Turns()
    _play_rounds(_simulate(name, engine="processes", workers=2, last_batch="short"), turns)


def ranks(name: str) -> None:
    """torchrun, which starts both ranks; what they send each other is reported as the loss."""
    if "RANK" not in os.environ:
        run = ["torch.distributed.run", "--nproc-per-node=2", "-m", "benchmarks.micro", "ranks"]
        os.execv(sys.executable, [sys.executable, "-m", *run, name])
    turns = Turns() if os.environ["RANK"] == "0" else None
    from wima.simulation.engines.ranks import join

    simulation = _simulate(name, engine="distributed", last_batch="short")
    if turns is not None:
        sent = lambda t: f"{join().bytes / t / 1e3:.1f} kB sent"  # noqa: E731
        _play_rounds(simulation, turns, sent)
    else:
        for _ in simulation:
            pass


NODES, NUMBERS = 100, 100_000


def flower(folder: Path, cohorts: Sequence[int] = (10, 100)) -> Cases:
    for cohort in cohorts:
        for count, who in {"1": "in one process", "2": "two workers"}.items():
            yield f"{cohort} nodes, wima, {who}", Player("echo", (count, str(cohort)))
        ray = Player("echo", ("ray", str(cohort)), "flower")
        yield f"{cohort} nodes, Flower's simulation engine, two actors", ray


def echo(workers: str, cohort: str) -> None:
    """Nodes send back the model that they got, so that a round is messages and nothing else."""
    turns = Turns()
    os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import numpy as np
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    client, server = ClientApp(), ServerApp()

    @client.train()
    def reply(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def after_round(t: int, arrays: ArrayRecord) -> None:
            if t > 0:  # also called before the first round
                turns.after(lambda: 0)

        share = {"fraction_train": int(cohort) / NODES, "fraction_evaluate": 0.0}
        model = ArrayRecord({"w": Array(np.ones(NUMBERS, np.float32))})
        with suppress(Over):  # to return from here is how a Flower simulation ends
            strategy = FedAvg(**share, min_available_nodes=NODES)
            strategy.start(grid, model, FOREVER, evaluate_fn=after_round)

    if workers == "ray":
        from flwr.simulation import run_simulation

        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client, num_supernodes=NODES, backend_config=resources)
    else:
        from wima.flower import run_flower

        run_flower(server, client, nodes=NODES, workers=int(workers))


# Commands.

COMMAND = "from wima.cli.main import main; main()"
FIRST = "import atexit, os; from wima.runs.launch import Runner; "
FIRST += f"Runner.append = lambda self, record: (atexit._run_exitfuncs(), os._exit(0)); {COMMAND}"
# Not getrusage: its peak is at least that of the process that started the command.
TELLING = """
import atexit, sys
atexit.register(lambda: print(open("/proc/self/status").read(), flush=True))
exec(sys.argv.pop(1))
"""


def startup(folder: Path) -> Cases:
    yield "`python -c pass`", Command("pass")
    yield "`import wima`", Command("import wima")
    yield "`wima --help`", Command(COMMAND, ("--help",))
    digits = ("run", "digits", "clients_per_round=10", "rounds=1000000")
    out = (*digits, "--out", f"{folder}/run")
    first, again = "`wima run digits` to the first round", partial(_remove, f"{folder}/run")
    yield f"{first}, one process", Command(FIRST, (*out, "engine=serial"), again)
    two = (*out, "engine=processes", "workers=2")
    yield f"{first}, two workers", Command(FIRST, two, again)


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def report(folder: Path, runs: int = 500, rounds: int = 400) -> Cases:
    from tests.helpers.run_folders import write_runs

    write_runs(folder / "runs", runs, rounds)
    words = ("report", f"{folder}/runs", "--out", f"{folder}/out")
    page = f"import atexit, os; page = {str(folder / 'out' / 'index.html')!r}; "
    page += "atexit.register(lambda: print(os.path.getsize(page) / 1e6, 'MB')); "
    again = partial(_remove, f"{folder}/out")
    yield f"{runs} runs, {rounds} rounds, three models", Command(page + COMMAND, words, again)


def storage(folder: Path) -> Cases:
    prepare("femnist")
    cases = {
        "checkpoints": "checkpoint every 20 rounds, FEMNIST CNN, W = 100",
        "budget": "SCAFFOLD, 3,400 clients x 1.2 M parameters, 50 rounds, 1 GB in memory",
        "long_window": "W = 370, 4.8 M parameters, past models in files",
    }
    for function, case in cases.items():
        yield case, Command(f"from benchmarks import micro; print(micro.{function}())")


def checkpoints(every: int = 20) -> str:
    import wima
    from wima.runs.checkpoint import save
    from wima.storage.segments import Segments

    rounds, saving = [], []
    with tempfile.TemporaryDirectory() as folder:
        store, averagers = Segments(Path(folder)), [wima.WIMA(100)]
        options = {"rounds": 2 * every, "engine": "processes", "averagers": averagers}
        with _simulate("femnist", **options) as simulation:
            for record in simulation:
                rounds.append(record.seconds)
                if record.t % every == 0:
                    begin = time.perf_counter()
                    save(simulation, store, {}, {})
                    saving.append(time.perf_counter() - begin)
    share = 100 * max(saving) / sum(rounds[-every:])
    return f"{max(saving):.3g} s per checkpoint, {share:.2f} % of {every} rounds"


def budget(clients: int = 3_400) -> str:
    import numpy as np

    import wima
    from wima.models import FemnistCNN
    from wima.storage.segments import Segments, Storage

    x, y = np.zeros((clients, 1, 28, 28), np.float32), np.arange(clients) % 62
    data = wima.FederatedData(x, y, np.arange(clients + 1))
    task = wima.make_task(FemnistCNN, data, (x[:1], y[:1]))
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"rounds": 50, "clients_per_round": 10, "lr": 0.01}
        options["storage"] = Storage(Segments(Path(folder)), client_bytes=1e9)
        run = wima.simulate(task, wima.Scaffold(), eval_every=0, engine="serial", **options)
        seconds = [record.seconds for record in run]
    return f"{median(seconds):.3g} s per round (median), {max(seconds):.3g} s at most"


def long_window(window: int = 370, parameters: int = 4_821_740) -> str:
    import torch

    from wima.averaging import WIMA, Averages
    from wima.storage.segments import Segments

    torch.set_num_threads(1)
    w, seconds = torch.randn(parameters), []
    with tempfile.TemporaryDirectory() as folder:
        store = Segments(Path(folder))
        watch = Averages({"wima": WIMA(window)}, w, mapped=store)
        for _ in range(window + 30):
            begin = time.perf_counter()
            watch.update(w)
            seconds.append(time.perf_counter() - begin)
            if watch.ring.count % 100 == 0:
                store.keep(watch.ring.save(store, "ring"))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    full = seconds[window:]
    return f"{1e3 * sum(full) / len(full):.3g} ms per update, {size / 1e6:.0f} MB in files"


MICRO = {
    "windows": Measurement(
        "Averaging", "Taking in one model, with full windows; one thread.", windows, rounds=20
    ),
    "buckets": Measurement(
        "Every window from a few sums",
        "`window=auto` with 1,000,000 parameters, at its largest in 10,000 rounds; one thread. "
        "A round of the FEMNIST CNN takes about 1.2 s.",
        buckets,
    ),
    "loop": Measurement(
        "Averaging in a training loop",
        "One update of a WindowAverage of 5,000,000 parameters in 32 tensors; copy: `vector.copy_` "
        "of the same size. One thread. In long windows only 40 rows are written, repeatedly.",
        loop,
        rounds=20,
    ),
    "average_files": Measurement(
        "Averaging saved checkpoints",
        "The mean of 100 checkpoints of 5,000,000 float32 numbers each, start-up included.",
        average_files,
        unit="s",
    ),
    "clients": Measurement(
        "Clients",
        f"MLP 64-64-10, {COHORT} clients per round with 15 examples each, engine serial, data "
        "mapped from disk. SCAFFOLD keeps 19 kB for each visited client.",
        clients,
        rounds=100,
    ),
    "evaluation": Measurement(
        "Evaluation",
        f"FEMNIST CNN, engine auto, {COHORT} clients per round; plain and wima100 on {IMAGES:,} "
        "test images.",
        evaluation,
        rounds=3,
    ),
    "detail": Measurement(
        "Metrics of clients",
        "FEMNIST CNN, plain and one average on 2,048 images, 16 per client; one thread.",
        detail,
        unit="s",
        rounds=2,
    ),
    "distributed": Measurement(
        "Ranks",
        f"FedAvg, {COHORT} clients per round, evaluation off. Two ranks on one machine, over "
        "loopback; what ranks sent each other per round is counted where it is sent.",
        distributed,
        rounds=3,
    ),
    "flower": Measurement(
        "Flower apps on our processes",
        f"FedAvg over {NODES} nodes, with a model of {NUMBERS:,} float32 numbers that clients send "
        "back unchanged, so only Flower's strategy and the messages take time.",
        flower,
        rounds=10,
    ),
    "startup": Measurement(
        "Start-up", "From the command to its end, or to the first round.", startup, unit="s"
    ),
    "report": Measurement(
        "Reports", "`wima report` over made-up run folders, and the page's size.", report, unit="s"
    ),
    "storage": Measurement(
        "Nothing is lost", "Each case in a process of its own, one thread.", storage, unit="s"
    ),
}


def measure(name: str, turns: int, **options: Any) -> dict[str, Any]:
    """The result of a measurement, as `benchmarks.report` takes it."""
    from benchmarks.report import number, origin

    title, text, cases, unit, rounds = MICRO[name]
    with tempfile.TemporaryDirectory() as folder:
        made = dict(cases(Path(folder), **options))
        contest = any(isinstance(case, Player) for case in made.values())
        measured = (_contest if contest else _in_turns)(made, turns, rounds)
    first, scale, rows = next(iter(measured.values())).seconds, 1e3 if unit == "ms" else 1.0, []
    for what, case in measured.items():
        row = [what, "failed", "", "", "", case.also]
        if case.seconds:
            ratio = median(a / b for a, b in zip(case.seconds, first, strict=False))
            times = [number(scale * of(case.seconds)) for of in (min, median)]
            memory = f"{case.memory / 1e6:.0f}" if case.memory else ""
            row = [what, *times, f"{ratio:.2f}", memory, case.also]
        rows.append(row)
    columns = ["what", f"best, {unit}", f"median, {unit}", "over the first", "memory, MB", "also"]
    used = [k for k in range(len(columns)) if any(row[k] for row in rows)]
    table = {"columns": [columns[k] for k in used], "rows": [[r[k] for k in used] for r in rows]}
    text += f" {turns} interleaved turns" + (f" of {rounds}." if rounds > 1 else ".")
    fields = {"name": name, "title": title, "text": text, "tables": [table], "origin": origin()}
    return {"kind": "micro", **fields}


class Measured(NamedTuple):
    seconds: list[float]  # per call or round, in each turn; empty if it failed
    memory: float = 0.0  # bytes
    also: str = ""  # what it said


def _contest(players: dict[str, Any], turns: int, rounds: int) -> dict[str, Measured]:
    from benchmarks.drive import interleave
    from benchmarks.environments import python

    commands = {
        what: [python(player.environment), "-m", __spec__.name, player.function, *player.arguments]
        for what, player in players.items()
    }
    results = interleave(commands, turns, rounds)
    return {
        what: Measured([], also=result["failed"])
        if "failed" in result
        else Measured(result["seconds"], result["peak_bytes"], str(result["loss"] or ""))
        for what, result in results.items()
    }


def _in_turns(cases: dict[str, Any], turns: int, rounds: int) -> dict[str, Measured]:
    import torch

    torch.set_num_threads(1)
    measured = {what: Measured([]) for what in cases}
    for _ in range(turns):
        for what, case in cases.items():
            if isinstance(case, Command):
                case.before()
            begin, memory, also = time.perf_counter(), 0.0, ""
            if isinstance(case, Command):
                memory, also = _alone(case)
            for _ in range(0 if isinstance(case, Command) else rounds):
                case()
            seconds = (time.perf_counter() - begin) / (1 if also or memory else rounds)
            before = measured[what]
            peak = max(memory, before.memory)
            measured[what] = Measured([*before.seconds, seconds], peak, also)
    return measured


def _alone(command: Command) -> tuple[float, str]:
    """The peak memory of a fresh interpreter, and the last line that it prints."""
    words = [sys.executable, "-c", TELLING, command.code, *command.arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    printed, _, status = done.stdout.partition("Name:")
    last = (printed.strip().splitlines() or [""])[-1]
    return 1024 * float(status.partition("VmHWM:")[2].split()[0]), last


if __name__ == "__main__":
    play(lambda function, *arguments: globals()[function](*arguments))
