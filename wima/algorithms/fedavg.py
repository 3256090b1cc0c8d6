from dataclasses import dataclass

from wima.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Clients run SGD from w; the server takes the weighted mean of their models.

        w <- sum_i p_i y_i,  where y_i is the end of client i's SGD

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data
    (AISTATS 2017), Algorithm 1, implemented by the base class.  FedAvgM and FedAdam are FedAvg with
    another `ServerOpt`.
    """
