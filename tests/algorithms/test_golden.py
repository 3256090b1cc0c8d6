"""Published numbers: the scalar table of ALGORITHMS.md, section 7.2, and FedJAX's own test values.

The table was made with scripts that share no code with this package.  Its problem: four clients
with the gradients a_i (w - b_i), a = (1, 2, .5, 4), b = (1, -1, 3, .5), N = (10, 20, 30, 40), full
batches, K = 2 local steps, lr = 0.1, w^0 = 0, cohorts {0,1}, {2,3}, {0,2}, {1,3}, {0,1}, {2,3} and
the weights N_i/N.  A row is w^1 ... w^6.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wima
from tests.helpers.toys import COHORTS, scalar_task, trajectory
from wima import SGD, Batch, FederatedData, Task

SETTINGS = {
    "rounds": 6,
    "clients_per_round": 2,
    "lr": 0.1,
    "batch_size": "full",
    "epochs": 2,
    "cohorts": lambda seed, t: COHORTS[t],
}
METHODS = {
    "FedAvg": (wima.FedAvg(), SGD()),
    "FedAvgM .9": (wima.FedAvg(), SGD(momentum=0.9)),
    "FedAvgM .9 .1": (wima.FedAvg(), SGD(lr=0.1, momentum=0.9)),
    "FedProx .1": (wima.FedProx(mu=0.1), SGD()),
    "SCAFFOLD II": (wima.Scaffold(option="II"), SGD()),
    "SCAFFOLD I": (wima.Scaffold(option="I"), SGD()),
    "FedDyn .01": (wima.FedDyn(alpha=0.01), SGD()),
    "AdaBest .02 .8": (wima.AdaBest(mu=0.02, beta=0.8), SGD()),
    "FedCM .1": (wima.FedCM(alpha=0.1), SGD()),
    "FedACG .85 .01": (wima.FedACG(lam=0.85, beta=0.01), SGD()),
    "MIME SGD": (wima.Mime(momentum=0.0), SGD()),
    "MIME SGDm .9 .1": (wima.Mime(momentum=0.9), SGD(lr=0.1)),
    "MIMELite .9 .1": (wima.MimeLite(momentum=0.9), SGD(lr=0.1)),
}
PUBLISHED = """
FedAvg           -0.1766666667 0.2035392857 0.4458623594 0.2954576029 0.0291687967 0.3254967978
FedAvgM .9       -0.1766666667 0.0445392857 0.5051270915 0.7368533067 0.5452280640 0.4587991952
FedAvgM .9 .1    -0.0176666667 -0.0020253214 0.0387638197 0.0826882913 0.1020454375 0.1461299461
FedProx .1       -0.1756666667 0.2019069048 0.4431780762 0.2950513215 0.0303775062 0.3245031876
SCAFFOLD II      -0.1766666667 0.1663517857 0.2818111419 0.2024586361 0.2501547187 0.2804434487
SCAFFOLD I       -0.1766666667 0.1597892857 0.2871975156 0.1784427101 0.2279809830 0.2789873146
FedDyn .01       -0.2190416667 0.3291224315 0.8032312380 0.4942818925 0.0956653359 0.4258363163
AdaBest .02 .8   -0.3180000000 0.3569720476 0.9475495475 0.4762392801 -0.1355112543 0.2831594834
FedCM .1         -0.0197666667 -0.0011392425 0.0430059903 0.0921923958 0.1132791740 0.1616858726
FedACG .85 .01   -0.1765666667 0.1144149147 0.5848733638 0.5400208350 0.1731713253 0.2258504775
MIME SGD         -0.1833333333 0.2093750000 0.4504272461 0.3113009983 0.0328479155 0.3309769524
MIME SGDm .9 .1  -0.0183333333 -0.0020312500 0.0408778338 0.0829378899 0.1037097989 0.1482674534
MIMELite .9 .1   -0.0176666667 -0.0018753214 0.0410495987 0.0813348613 0.1028073235 0.1472978959
WIMA of 3        -0.1766666667 0.0134363095 0.1575783261 0.3149530827 0.2568295863 0.2167077325
"""
TABLE = {line[:17].rstrip(): line[17:] for line in PUBLISHED.strip().splitlines()}


def printed(models: list[torch.Tensor]) -> str:
    """Scalars as the table prints them."""
    return " ".join(f"{float(w):.10f}" for w in models)


@pytest.mark.parametrize("engine", ["reference", "serial"])
@pytest.mark.parametrize("row", METHODS)
def test_a_row_of_the_scalar_table_is_met_to_all_its_decimals(row, engine):
    algorithm, server_opt = METHODS[row]
    models = trajectory(scalar_task(), algorithm, server_opt=server_opt, engine=engine, **SETTINGS)
    assert printed(models) == TABLE[row]


@pytest.mark.parametrize("engine", ["reference", "serial", "processes"])
def test_one_run_of_fedavg_meets_its_own_row_and_that_of_its_window(engine):
    workers = 2 if engine == "processes" else None
    settings = {**SETTINGS, "averagers": [wima.WIMA(3)], "engine": engine, "workers": workers}
    with wima.simulate(scalar_task(), **settings) as simulation:
        seen = [simulation.vectors() for _ in simulation]
    assert printed([models["plain"] for models in seen]) == TABLE["FedAvg"]
    assert printed([models["wima3"] for models in seen]) == TABLE["WIMA of 3"]


# FedJAX's tests (google/fedjax: algorithms/fed_prox_test.py, mime_test.py, mime_lite_test.py) have
# the loss mean(x) * w, whose gradient is mean(x), from w = 4 with lr = 1.


def linear_task(clients: list[list[float]], batches: list[list[list[float]]] | None = None) -> Task:
    """The loss mean(x) * w from w = 4; batches[i][k], if given, is client i's k-th mini-batch."""
    x = np.concatenate(clients).astype(np.float64)
    ids = np.repeat(np.arange(len(clients)), [len(examples) for examples in clients])
    data = FederatedData.from_arrays(x, np.zeros(len(x)), ids)

    def gradient(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        _, _, client, k = batch.address
        whole = batches is None or k >= len(batches[client])
        examples = batch.x if whole else torch.tensor(batches[client][k], dtype=w.dtype)
        return examples.mean().reshape(1)

    return Task(
        data, lambda seed: torch.full((1,), 4.0, dtype=torch.float64), gradient, lambda w: {}
    )


@pytest.mark.parametrize(("client", "delta"), [(0, 13.96), (1, 11.97)])
@pytest.mark.parametrize("engine", ["reference", "serial"])
def test_fedprox_moves_as_far_as_in_fedjax(engine, client, delta):
    batches = [[[2, 4, 6], [8, 10, 12]], [[1, 3, 5], [7, 9, 11]]]
    task = linear_task([[*first, *second] for first, second in batches], batches)
    settings = {"rounds": 1, "clients_per_round": 1, "lr": 1.0, "batch_size": 3, "engine": engine}
    (w,) = trajectory(task, wima.FedProx(mu=0.01), cohorts=lambda s, t: [client], **settings)
    assert 4 - float(w) == pytest.approx(delta, abs=1e-12)


@pytest.mark.parametrize("engine", ["reference", "serial"])
def test_mime_ends_where_fedjax_ends(engine):
    task = linear_task([[2, 4, 6], [8, 10]])
    settings = {"rounds": 1, "clients_per_round": 2, "lr": 1.0, "batch_size": 2, "engine": engine}
    (w,) = trajectory(task, wima.Mime(momentum=0.9), server_opt=SGD(lr=0.2), **settings)
    assert float(w) == pytest.approx(2.08, abs=1e-12)


@pytest.mark.parametrize("engine", ["reference", "serial"])
def test_mimelite_ends_where_fedjax_ends_on_the_batches_that_fedjax_drew(engine):
    # Its seeded shuffle is not ours; 3.88 needs batch means of .3 and .4 on the first client.
    batches = [[[0.2, 0.4], [0.6, 0.2]], [[0.8, 0.1]]]
    task = linear_task([[0.2, 0.4, 0.6], [0.8, 0.1]], batches)
    settings = {"rounds": 1, "clients_per_round": 2, "lr": 1.0, "batch_size": 2, "engine": engine}
    (w,) = trajectory(task, wima.MimeLite(momentum=0.9), server_opt=SGD(lr=0.2), **settings)
    assert float(w) == pytest.approx(3.88, abs=1e-12)
