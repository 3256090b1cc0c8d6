from dataclasses import dataclass

from wima.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Clients run SGD from w; the server takes the weighted mean of their models.

        w <- sum_i p_i y_i,  where y_i is the end of client i's SGD

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
    (AISTATS 2017), Algorithm 1, implemented by the base class.  FedAvgM and FedAdam are FedAvg with
    another `ServerOpt`.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> result = wima.run(task, wima.FedAvg(), rounds=2, clients_per_round=1, engine="serial")
        >>> result.records[-1].t
        2
    """
