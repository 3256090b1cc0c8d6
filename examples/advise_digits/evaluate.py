"""Accuracy and loss of a checkpoint on held-out digits: evaluate.py HELD_OUT CHECKPOINT

Written with numpy, because it starts ten times faster than torch.
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file

held_out, w = np.load(sys.argv[1]), load_file(sys.argv[2])
x, y = held_out["x"].reshape(len(held_out["y"]), -1), held_out["y"]
hidden = np.maximum(x @ w["hidden.weight"].T + w["hidden.bias"], 0)
scores = hidden @ w["classifier.weight"].T + w["classifier.bias"]
scores -= scores.max(axis=1, keepdims=True)
log_likelihood = scores[np.arange(len(y)), y] - np.log(np.exp(scores).sum(axis=1))
accuracy = (scores.argmax(axis=1) == y).mean()
print(json.dumps({"accuracy": float(accuracy), "loss": float(-log_likelihood.mean())}))
