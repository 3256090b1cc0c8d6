"""One file per method; importing its class here registers it under its name in lower case."""

from wima.algorithms.base import Algorithm as Algorithm, Local as Local, Visit as Visit

# In the order of `wima list`:
# isort: off
from wima.algorithms.fedavg import FedAvg as FedAvg
from wima.algorithms.fedprox import FedProx as FedProx
from wima.algorithms.scaffold import Scaffold as Scaffold
from wima.algorithms.feddyn import FedDyn as FedDyn
from wima.algorithms.adabest import AdaBest as AdaBest
from wima.algorithms.fedcm import FedCM as FedCM
from wima.algorithms.fedacg import FedACG as FedACG
from wima.algorithms.mime import Mime as Mime
from wima.algorithms.mimelite import MimeLite as MimeLite

# isort: on

# Settings look methods up here.
BY_NAME: dict[str, type[Algorithm]] = {
    method.__name__.lower(): method for method in Algorithm.__subclasses__()
}
