"""Bytes in NumPy's format whose header says what the test wants."""

from __future__ import annotations


def npy(shape: str, descr: str = "'<f4'", data: bytes = bytes(8), version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data
