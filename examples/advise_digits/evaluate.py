"""Accuracy and loss of a checkpoint on held-out digits, for `wima advise --eval`."""

import numpy as np
from safetensors.numpy import load_file

from wima.data.sets.digits import load_digits_split

_, _, x, y = load_digits_split()  # once, however many checkpoints there are
x = x.reshape(len(y), -1)


def evaluate(path: str) -> dict[str, float]:
    w = load_file(path)
    hidden = np.maximum(x @ w["hidden.weight"].T + w["hidden.bias"], 0)
    scores = hidden @ w["classifier.weight"].T + w["classifier.bias"]
    scores -= scores.max(axis=1, keepdims=True)
    log_likelihood = scores[np.arange(len(y)), y] - np.log(np.exp(scores).sum(axis=1))
    accuracy = (scores.argmax(axis=1) == y).mean()
    return {"accuracy": float(accuracy), "loss": float(-log_likelihood.mean())}
