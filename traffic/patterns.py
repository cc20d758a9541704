"""Traffic patterns as pure functions."""

import random


def derangement(n: int, rng: random.Random) -> list[int]:
    """A permutation of range(n) without a fixed point, drawn uniformly (by rejection; about e tries).

    Raises:
        ValueError: there is none, for n = 1.
    """
    if n == 1:
        raise ValueError("one element has no derangement")
    while True:
        order = list(range(n))
        rng.shuffle(order)
        if all(i != j for i, j in enumerate(order)):
            return order
