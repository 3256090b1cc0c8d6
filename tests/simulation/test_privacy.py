"""Differential privacy: what is clipped, what noise is added, and what it costs."""

from __future__ import annotations

import json
from math import exp, inf, log, sqrt

import numpy as np
import pytest
import torch

import wima
from tests.helpers.interrupted import outcome
from wima.algorithms import BY_NAME
from wima.algorithms.traffic import traffic
from wima.core.errors import UsageError
from wima.core.randomness import rng
from wima.runs.launch import launch, resume
from wima.runs.settings import load_settings
from wima.simulation.options import poisson_cohorts
from wima.simulation.privacy import COUNT_NOISE, Gaussian, PrivacyAccountant, Sampling

dp = pytest.importorskip("dp_accounting", reason="extra [privacy] is not installed")

EXACT = ("reference", "serial", "processes")
CLIENTS, COHORT, SEED = 12, 4, 3
OPTIONS = {"rounds": 5, "clients_per_round": COHORT, "lr": 0.1, "batch_size": 5, "seed": SEED}
OPTIONS |= {"weighting": "uniform", "cohorts": "poisson", "eval_every": 0}
DIGITS = ["digits", "clients=30", "clients_per_round=6", "rounds=8", "weighting=uniform"]
DIGITS += ["cohorts=poisson", "privacy=gaussian:clip=0.2:noise=0.5:quantile=0.6", "engine=serial"]
PRIVATE = sorted(name for name, kind in BY_NAME.items() if traffic(kind()).up == 1)


@pytest.fixture(scope="module")
def task() -> wima.Task:
    from wima.data.sets.digits import digits

    bundle = digits(num_clients=CLIENTS, alpha=0.5)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    return wima.make_task(model, bundle.train, (bundle.x_test, bundle.y_test))


def deltas(task: wima.Task, w: torch.Tensor, t: int) -> list[torch.Tensor]:
    """What each client of round t would send: one round of FedAvg with that client alone."""
    found = []
    for client in poisson_cohorts(CLIENTS, COHORT)(SEED, t):
        alone = {**OPTIONS, "rounds": t + 1, "cohorts": lambda *_, client=client: [client]}
        simulation = wima.simulate(task, engine="reference", **alone)
        simulation.t, simulation.state = t, simulation.state._replace(w=w)
        next(simulation)
        found.append(w - simulation.w)
    return found


@pytest.mark.parametrize("quantile", [None, 0.5])
def test_rounds_equal_the_formula(task, quantile):
    clip, z, rate = 0.05, 0.7, 0.2
    privacy = Gaussian(clip=clip, noise=z, quantile=quantile, rate=rate)
    simulation = wima.simulate(task, privacy=privacy, engine="serial", **OPTIONS)
    s = max(COUNT_NOISE * COHORT, z)
    on_sum = z if quantile is None else (z**-2 - (2 * s) ** -2) ** -0.5
    for t in range(OPTIONS["rounds"]):
        w = simulation.w.clone()
        sent = deltas(task, w, t)
        total = sum((d * min(1, clip / float(d.norm())) for d in sent), torch.zeros_like(w))
        draw = rng("privacy", SEED, t)
        noise = torch.tensor(draw.standard_normal(len(w), dtype=np.float32))
        record = next(simulation)
        expected = w - (total + on_sum * clip * noise) / COHORT
        assert torch.allclose(simulation.w, expected, atol=1e-6)
        if quantile is not None:
            within = sum(float(d.norm()) <= clip for d in sent) + s * draw.standard_normal()
            clip *= exp(-rate * (within / COHORT - quantile))
        assert record.privacy["clip"] == pytest.approx(clip)


def test_noise_is_added_once_with_the_stated_deviation_even_if_nobody_came(task):
    """Without clients, the model moves by noise alone: N(0, (noise * clip / cohort)^2)."""
    clip, z, nobody = 2.0, 3.0, {**OPTIONS, "clients_per_round": 1, "rounds": 40}
    t = next(t for t in range(40) if not poisson_cohorts(CLIENTS, 1)(SEED, t))
    simulation = wima.simulate(task, privacy=Gaussian(clip=clip, noise=z), **nobody)
    for _ in range(t):
        next(simulation)
    before = simulation.w.clone()
    assert next(simulation).cohort == []
    moved = (simulation.w - before).double()
    assert float(moved.std()) == pytest.approx(z * clip / 1, rel=0.1)  # of 650 entries: 2.8 %
    assert abs(float(moved.mean())) < 4 * z * clip / sqrt(len(moved))


@pytest.mark.parametrize("name", PRIVATE)
def test_engines_agree_to_the_bit(task, name):
    models = []
    for engine in EXACT if name == "adabest" else EXACT[:2]:  # workers take their time to start
        more = {"algorithm": BY_NAME[name](), "averagers": [wima.WIMA("auto"), wima.WIMA(2)]}
        privacy = Gaussian(clip=0.1, noise=0.3, quantile=0.5)
        result = wima.run(task, engine=engine, workers=2, privacy=privacy, **more, **OPTIONS)
        models.append(result.vectors)
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in models[0])


def test_a_resumed_run_has_the_same_noise_clip_and_epsilon(tmp_path):
    whole = launch(load_settings(DIGITS[0], DIGITS[1:]), tmp_path / "whole")
    settings = load_settings(DIGITS[0], [*DIGITS[1:], "checkpoint_every=3"])
    simulated = tmp_path / "parts"

    class Stop:
        def __init__(self, rounds, done): ...
        def __enter__(self):
            return self

        def __exit__(self, *exception): ...
        def update(self, record):
            if record.t == 5:
                raise KeyboardInterrupt

    with pytest.raises(Exception, match="Interrupted after"):
        launch(settings, simulated, progress=Stop)
    resume(simulated)
    assert outcome(simulated) == outcome(tmp_path / "whole")
    spent = [record["privacy"]["epsilon"] for record in whole.lines()]
    assert spent == sorted(spent) and len(set(spent)) == 8


def test_the_searched_noise_is_recorded_and_a_resume_with_another_is_refused(tmp_path):
    budget = "privacy=gaussian:clip=0.2:epsilon=5"
    settings = load_settings(DIGITS[0], [*DIGITS[1:], budget, "checkpoint_every=3"])
    run = launch(settings, tmp_path / "run")
    sampling = Sampling("poisson", 6, 30)
    noise = run.environment["noise"]
    assert [*run.lines()][-1]["privacy"]["epsilon"] <= 5
    assert PrivacyAccountant(Gaussian(clip=1, noise=noise), sampling).epsilon(8) <= 5
    less = PrivacyAccountant(Gaussian(clip=1, noise=noise - 0.01), sampling)
    assert less.epsilon(8) > 5
    path = tmp_path / "run" / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "noise": noise / 2}))
    for file in (tmp_path / "run" / "checkpoints").glob("*.json"):
        file.unlink()
    status = tmp_path / "run" / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "interrupted"}))
    with pytest.raises(UsageError, match="noise"):
        resume(tmp_path / "run")


# --- accounting


@pytest.mark.parametrize("rounds", [1, 7, 400])
@pytest.mark.parametrize("kind", ["poisson", "uniform"])
def test_epsilon_is_that_of_dp_accounting(kind, rounds):
    """Poisson: one client more or less moves the sum by clip; fixed size: by 2 clip."""
    noise, cohort, clients = 1.1, 10, 405
    found = PrivacyAccountant(
        Gaussian(clip=1, noise=noise), Sampling(kind, cohort, clients)
    ).epsilon(rounds)
    if kind == "poisson":
        relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp.PoissonSampledDpEvent(cohort / clients, dp.GaussianDpEvent(noise))
    else:
        relation = dp.NeighboringRelation.REPLACE_ONE
        gaussian = dp.GaussianDpEvent(noise / 2)
        event = dp.SampledWithoutReplacementDpEvent(clients, cohort, gaussian)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation).compose(event, rounds)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_epsilon_is_that_of_the_moments_accountant_paper():
    """Abadi et al. 2016, section 3.2: q = 0.01, sigma = 4, T = 10,000, delta = 1e-5: 1.26.

    They convert by min over orders of rho - log(delta) / (order - 1); today's bound is tighter.
    """
    accountant = PrivacyAccountant(Gaussian(clip=1, noise=4.0), Sampling("poisson", 100, 10_000))
    orders, spent = np.array(accountant._orders), 10_000 * accountant._divergences
    published = np.min((spent - log(1e-5) / (orders - 1))[orders > 1])
    assert published == pytest.approx(1.26, abs=0.01)
    assert 0.9 < accountant.epsilon(10_000) < published


def test_poisson_cohorts_are_binomial_and_uniform_over_clients():
    draws = [poisson_cohorts(40, 5)(0, t) for t in range(4000)]
    sizes = np.array([len(cohort) for cohort in draws])
    p = 5 / 40
    assert sizes.mean() == pytest.approx(40 * p, abs=4 * sqrt(40 * p * (1 - p) / 4000))
    assert sizes.var() == pytest.approx(40 * p * (1 - p), rel=0.1)
    visits = np.bincount(np.concatenate([np.array(c, int) for c in draws]), minlength=40)
    assert abs(visits - 4000 * p).max() < 5 * sqrt(4000 * p * (1 - p))


@pytest.mark.parametrize("cohorts", ["poisson", "uniform"])
def test_without_noise_updates_are_clipped_and_epsilon_is_infinite(task, cohorts):
    options = {**OPTIONS, "cohorts": cohorts, "rounds": 1}
    with wima.simulate(task, privacy=Gaussian(clip=0.01, noise=0), **options) as simulation:
        before = simulation.w.clone()
        record = next(simulation)
    assert record.privacy == {"epsilon": inf, "clip": 0.01}
    moved = float((simulation.w - before).norm())
    assert moved <= 0.01 * len(record.cohort) / COHORT * (1 + 1e-5)


# --- what is refused


def test_who_sends_more_than_an_update_is_refused(task):
    assert set(PRIVATE) == {"fedavg", "fedprox", "fedacg", "adabest"}
    privacy = Gaussian(clip=1, noise=1)
    for name in set(BY_NAME) - set(PRIVATE):
        with pytest.raises(UsageError, match="send more than their update"):
            wima.simulate(task, BY_NAME[name](), privacy=privacy, **OPTIONS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weighting": "examples"}, "weighting=uniform"),
        ({"cohorts": lambda seed, t: [0]}, "'uniform' or 'poisson'"),
        ({"cohorts": "poison"}, "did you mean 'poisson'"),
    ],
)
def test_runs_without_a_known_bound_are_refused(task, change, said):
    with pytest.raises(UsageError, match=said):
        wima.simulate(task, privacy=Gaussian(clip=1, noise=1), **{**OPTIONS, **change})


def test_running_statistics_are_refused():
    data = wima.FederatedData.from_arrays(np.eye(4, dtype="f"), np.arange(4) % 2, np.arange(4))
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    normed = wima.make_task(model, data, (np.eye(4, dtype="f"), np.arange(4) % 2))
    with pytest.raises(UsageError, match="BatchNorm"):
        wima.simulate(normed, privacy=Gaussian(clip=1, noise=1), **OPTIONS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gaussian:noise=1.0", "needs clip"),
        ("gaussian:clip=0.0:noise=1.0", "clip must be a positive number"),
        ("gaussian:clip=1.0", "noise or epsilon"),
        ("gaussian:clip=1.0:noise=1.0:epsilon=8", "not both"),
        ("gaussian:clip=1.0:noise=-1.0", "noise must be"),
        ("gaussian:clip=1.0:noise=1.0:delta=1.5", "delta must be between 0 and 1"),
        ("gaussian:clip=1.0:epsilon=1e-300", "Even with a noise of 1000"),
        ("gaussian:clip=1.0:noise=1.0:quantile=2", "quantile must be"),
        ("gausian:clip=1.0:noise=1.0", "did you mean 'gaussian'"),
    ],
)
def test_wrong_settings_are_explained(cli, tmp_path, text, said):
    code, out, errors = cli("run", *DIGITS[:6], f"privacy={text}", "--out", "run")
    assert (code, out) == (2, "") and said in errors and not (tmp_path / "run").exists()


def test_without_dp_accounting_the_package_to_install_is_named(task, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(UsageError, match=r"wima\[privacy\]"):
        wima.simulate(task, privacy=Gaussian(clip=1, noise=1), **OPTIONS)
