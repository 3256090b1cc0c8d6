"""Train on digits with SGD at a constant rate, and save a checkpoint every few steps.

python examples/advise_digits/train.py FOLDER
wima advise 'FOLDER/step_*.safetensors' --metric accuracy --eval examples/advise_digits/evaluate.py
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from wima.data.sets.digits import load_digits_split
from wima.models import MLP

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("folder", type=Path)
parser.add_argument("--checkpoints", type=int, default=200)
parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()

torch.manual_seed(asked.seed)
torch.set_num_threads(1)
x, y, _, _ = load_digits_split()
images, labels = torch.from_numpy(x), torch.from_numpy(y)
asked.folder.mkdir(parents=True, exist_ok=True)

model = MLP()
optimizer = torch.optim.SGD(model.parameters(), lr=asked.lr)
for step in range(1, asked.checkpoints * asked.every + 1):
    batch = torch.randint(len(labels), (asked.batch,))
    optimizer.zero_grad()
    cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
    if step % asked.every == 0:
        save_file(model.state_dict(), asked.folder / f"step_{step}.safetensors")
