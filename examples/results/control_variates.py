"""Do SCAFFOLD's control variates fit the gradients that they stand for?

SCAFFOLD steps with g_i(y) - c_i + c.  This helps while c_i is close to g_i(y) at every step of a
visit.  Every few rounds, the clients of the last round are visited once more, and two lengths are
printed for each local step, as means over these clients: |g|, the client's gradient, and |g - c_i|,
what is left of it.  If |g - c_i| is the larger one, the control variate adds an error.

    python examples/results/control_variates.py digits rounds=100 eval_every=20
    python examples/results/control_variates.py cifar10 model=resnet8:stride=2 rounds=90
"""

import sys

import torch

import wima
from wima.runs.build import build_task
from wima.runs.settings import load_settings
from wima.simulation.local import batches


def lengths(simulation, client, lr):
    """|g| and |g - c_i| at each step of the client's next visit."""
    task, sgd, seed = (getattr(simulation.setup, name) for name in ("task", "sgd", "seed"))
    y, c = simulation.w, simulation.state.server.c
    c_i = simulation.state.memory.read(client, y).c
    for batch in batches(task.data, client, sgd, seed, simulation.t):
        g = task.gradient(y, batch).clone()
        yield g.norm(), (g - c_i).norm()
        y = y - lr * (g - c_i + c)


def main(preset="digits", *assignments):
    settings = load_settings(preset, assignments)
    names = ("rounds", "clients_per_round", "lr", "batch_size", "epochs", "seed", "eval_every")
    options = {name: getattr(settings, name) for name in names}
    torch.set_num_threads(1)
    simulation = wima.simulate(
        build_task(settings), wima.Scaffold(), eval_last=1, engine="serial", **options
    )
    for record in simulation:
        if not record.metrics:
            continue
        visits = [list(lengths(simulation, i, settings.lr)) for i in record.cohort]
        g, rest = torch.tensor(visits).mean(0).T
        accuracy = 100 * record.metrics["plain"]["accuracy"]
        print(f"round {record.t:4}  accuracy {accuracy:5.1f} %")
        print("    |g|       " + "".join(f"{x:8.2f}" for x in g))
        print("    |g - c_i| " + "".join(f"{x:8.2f}" for x in rest), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
