"""Lets packages import torchvision where torch is built without CUDA.

PyPI's torchvision is built for torch with CUDA.  Without it, its compiled operators do not load,
and its import stops at two that are not declared.  Declared, they let the import through; no
workload comes near them.
"""

from __future__ import annotations

import torch


def declare_operators() -> torch.library.Library:
    """Call this before the import; the operators last as long as what it returns."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
