"""A plain training loop with the window average; evaluation shows all models."""

import torch
from torch import nn

import wima
from wima.data.sets.digits import load_digits

torch.manual_seed(0)
x, y = (torch.tensor(array) for array in load_digits())
x = x.float() / 16
order = torch.randperm(len(x))
train, test = order[:1400], order[1400:]

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
average = wima.WindowAverage(model, window=[10, 100])
auto = wima.WindowAverage(model, window="auto")


def accuracy() -> float:
    model.eval()
    right = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    model.train()
    return right


for step in range(1, 601):
    batch = train[torch.randint(len(train), (8,))]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    average.update()
    auto.update()  # before the gradients are zeroed: the window is chosen by them
    if step % 100 == 0:
        shown = [f"step {step}: plain {accuracy():.3f}"]
        for window in average.windows:
            with average.applied(window):
                shown.append(f"wima{window} {accuracy():.3f}")
        with auto.applied():
            shown.append(f"auto {accuracy():.3f} (W = {auto.n_averaged})")
        print(", ".join(shown))
