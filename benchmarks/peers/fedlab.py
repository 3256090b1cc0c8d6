"""FedLab's standalone simulation: one process, clients one after the other."""

from __future__ import annotations

from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load


def main(name: str) -> None:
    turns = Turns()
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.peers.torchvision_on_cpu import declare_operators

    _operators = declare_operators()
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline

    from benchmarks.models import check_loss, evaluate, evaluation_batches, loss, make_model

    workload, data = WORKLOADS[name], load(name)
    test = evaluation_batches(data)

    class Clients(FedDataset):
        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
            examples = TensorDataset(*map(torch.from_numpy, data.client(id)))
            return DataLoader(examples, batch_size=batch_size, shuffle=True)

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            if turns.evaluate:
                evaluate(self.handler.model, test)
            turns.after(lambda: check_loss(self.handler.model, data))

    trainer = SGDSerialClientTrainer(make_model(name), CLIENTS, cuda=False)
    trainer.setup_dataset(Clients())
    trainer.setup_optim(epochs=1, batch_size=workload.batch, lr=workload.lr)
    if workload.sequences:
        trainer.criterion = loss  # its own takes a row of characters for an image
    handler = SyncServerHandler(make_model(name), FOREVER, COHORT / CLIENTS, cuda=False)
    Pipeline(handler, trainer).main()


if __name__ == "__main__":
    play(main)
