"""The accuracy of a run on FEMNIST for digits, capitals and small letters.

Digits are easy, and data sets differ in their share of digits.  The last line is what the models
would have if the test images had the shares of all of EMNIST (ByClass: Cohen et al. 2017).

    wima run femnist --out runs/femnist
    python examples/results/femnist_groups.py runs/femnist
"""

import sys

import torch

import wima
from wima.data.federated import as_tensor
from wima.data.load import load

EMNIST = torch.tensor([402_953, 220_304, 190_998])  # images of digits, capitals, small letters


def main(folder):
    data, run = load("femnist"), wima.read_run(folder)
    x, y = as_tensor(data.x_test), as_tensor(data.y_test)
    group = torch.bucketize(y, torch.tensor([9, 35]))  # labels: 0-9, 10-35, 36-61
    right = {name: hits(run.model(name), data.transform.evaluate, x, y) for name in run.models}
    print(f"{'':<24}{'images':>8}" + "".join(f"{name:>12}" for name in right))
    for k, name in enumerate(("digits", "capitals", "small letters")):
        row((name, int((group == k).sum())), (hit[group == k].mean() for hit in right.values()))
    row(("all", len(y)), (hit.mean() for hit in right.values()))
    means = (torch.stack([hit[group == k].mean() for k in range(3)]) for hit in right.values())
    row(("all, in EMNIST's shares", ""), (mean @ (EMNIST / EMNIST.sum()) for mean in means))


def hits(model, transform, x, y):
    """1 for each example that the model classifies correctly, else 0."""
    model.eval()
    with torch.no_grad():
        guesses = [model(transform(part)).argmax(1) for part in x.split(256)]
    return (torch.cat(guesses) == y).float()


def row(head, accuracies):
    print(f"{head[0]:<24}{head[1]:>8}" + "".join(f"{100 * float(a):>12.2f}" for a in accuracies))


if __name__ == "__main__":
    main(sys.argv[1])
