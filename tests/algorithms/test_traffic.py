"""What algorithms send, by their declaration and in the paper's words."""

import pytest
import torch

from wima.algorithms import BY_NAME, Scaffold
from wima.algorithms.base import Local
from wima.algorithms.traffic import Traffic, emptied, reads, traffic

# down: w, and c of SCAFFOLD, D of FedCM, m of FedACG and MIMELite; of MIME w, then w, m and c.
# up: the update, and the change of c_i, the direction, the gradient, FedDyn's own mean.
EXPECTED = {
    "fedavg": (1, 1),
    "fedprox": (1, 1),
    "adabest": (1, 1),
    "fedacg": (2, 1),
    "feddyn": (1, 2),
    "fedcm": (2, 2),
    "scaffold": (2, 2),
    "mimelite": (2, 2),
    "mime": (4, 2),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_vectors_per_visit(name):
    assert traffic(BY_NAME[name]()) == Traffic(*EXPECTED[name])


@pytest.mark.parametrize("name", BY_NAME)
def test_clients_do_the_same_without_what_they_do_not_read(name):
    """With empty vectors in those places, which no arithmetic survives."""
    algorithm, w = BY_NAME[name](), torch.arange(3.0)
    server = algorithm.init(w)
    local = algorithm.local(w, server, algorithm.client_init(w))
    lean = algorithm.local(w, emptied(server, reads(algorithm)), algorithm.client_init(w))
    assert torch.equal(local.start, lean.start)
    assert torch.equal(torch.as_tensor(local.shift), torch.as_tensor(lean.shift))


class Remembering(Scaffold):
    """Clients read c only to remember it."""

    def local(self, w, server, client):
        return Local(w)

    def client_finish(self, visit, server, client):
        return None, server


def test_what_clients_only_remember_is_read():
    assert reads(Remembering()) == [True] and traffic(Remembering()) == Traffic(2, 1)
