"""Named random streams: a seed for every purpose, none of them global."""

import hashlib

import numpy as np


def stream_seed(seed: int, *names: str | int) -> int:
    """A seed in [0, 2**31) for the stream of these names, the same on every machine."""
    text = "/".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 2**31


def data_order(seed: int, n: int) -> list[int]:
    """The fixed shuffled order in which prompts of a split of n records are drawn."""
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "data_order")))
    return [int(index) for index in generator.permutation(n)]
