"""Averages of saved checkpoints from any training, and which average is best.

torch is needed only for PyTorch files.
"""
