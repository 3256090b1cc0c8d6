"""Plain twins of the package's fast functions, for tests to compare them with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wima.data.transform import PAD, draw


def plain_crop_and_flip(x: Tensor, address: tuple[int, ...]) -> Tensor:
    """`wima.data.transform.crop_and_flip`, one image after the other."""
    top, left, flip = draw(len(x), 2 * PAD + 1, address)
    padded, (height, width) = F.pad(x, (PAD, PAD, PAD, PAD)), x.shape[2:]
    images = []
    for i in range(len(x)):
        image = padded[i, :, top[i] : top[i] + height, left[i] : left[i] + width]
        images.append(image.flip(2) if flip[i] else image)
    return torch.stack(images)


def plain_lstm(x: Tensor, from_x: Tensor, from_h: Tensor, bias: Tensor) -> Tensor:
    """`wima.models.lstm.fused_lstm`, one step after the other."""
    h = c = x.new_zeros(x.shape[1], len(bias) // 4)
    outputs = []
    for x_t in x:
        i, f, g, o = (x_t @ from_x.t() + h @ from_h.t() + bias).chunk(4, dim=1)
        c = (f + 1).sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs)
