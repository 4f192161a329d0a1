"""Named random streams: a stream depends on its name and its numbers, on nothing else."""

import hashlib

import numpy as np


def derived_seed(name: str, *parts: int | str) -> int:
    """A 63-bit seed from a stream's name and the numbers or texts that identify it."""
    text = "\x1f".join((name, *map(str, parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def stream(name: str, *parts: int | str) -> np.random.Generator:
    """The random stream called `name` for `parts`; equal arguments give equal streams."""
    return np.random.Generator(np.random.Philox(key=derived_seed(name, *parts)))
