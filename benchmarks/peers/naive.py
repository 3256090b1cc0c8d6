"""The obvious loop in one process, with torch's default threads: what needs no simulator."""

from __future__ import annotations

import copy

from benchmarks.turns import Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load


def main(name: str) -> None:
    turns = Turns()
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.models import check_loss, evaluate, evaluation_batches, make_model, train

    workload, data, model = WORKLOADS[name], load(name), make_model(name)
    test = evaluation_batches(data)
    random = np.random.default_rng(0)
    clients = [TensorDataset(*map(torch.from_numpy, data.client(i))) for i in range(CLIENTS)]
    while True:
        states = []
        for client in random.choice(CLIENTS, COHORT, replace=False):
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=workload.lr)
            train(local, DataLoader(clients[client], workload.batch, shuffle=True), optimizer)
            states.append(local.state_dict())
        mean = {key: torch.stack([s[key] for s in states]).mean(dim=0) for key in states[0]}
        model.load_state_dict(mean)
        if turns.evaluate:
            evaluate(model, test)
        turns.after(lambda: check_loss(model, data))


if __name__ == "__main__":
    play(main)
