"""Saved checkpoints of any training: their mean, and which mean is best.  Needs no torch, unless
the files are PyTorch's.
"""
