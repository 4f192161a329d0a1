"""Named random streams: a seed for every purpose, none of them global."""

import hashlib

import numpy as np


def stream_seed(seed: int, *names: str | int) -> int:
    """A seed in [0, 2**31) for the stream of these names, the same on every machine."""
    text = "/".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 2**31


def arm_order(
    seed: int, n: int, batch: int, draws: int, *, reuse: bool, held_out: int = 0
) -> list[int]:
    """The order in which an arm that takes `batch` prompts a step draws from a split of n.

    The last `held_out` prompts of the split's fixed order are in no pass. With `reuse`, and more
    draws than prompts are left, these are shuffled anew for each further pass; a pass ends where no
    whole step is left, so that no step holds a prompt twice.
    """
    split = data_order(seed, n)
    order, held = split[: max(0, n - held_out)], set(split[max(0, n - held_out) :])
    if not reuse or draws <= len(order) or batch > len(order):
        return order
    whole = len(order) - len(order) % batch
    seeds = [stream_seed(seed, "pass", number) for number in range(1, -(-draws // whole))]
    again = ([i for i in data_order(other, n) if i not in held] for other in seeds)
    return [index for one in (order, *again) for index in one[:whole]]


def data_order(seed: int, n: int) -> list[int]:
    """The fixed shuffled order in which prompts of a split of n records are drawn."""
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "data_order")))
    return [int(index) for index in generator.permutation(n)]
