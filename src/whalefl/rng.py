"""Named random streams: every draw belongs to a seed and a name, never to a moment or an order.

Two streams with different names are independent; the same name gives the same draws whatever was drawn before.
So the weather does not depend on the method, and grouping, resuming or reordering devices changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The random stream called `name` under `seed`."""
    label = "/".join(f"{type(part).__name__}:{part}" for part in (seed, *name))
    digest = hashlib.blake2b(label.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


@dataclass(frozen=True)
class Seeds:
    """One seed for each independent source of chance, so that each can be varied alone."""

    training: int = 0
    weights: int = 0
    partition: int = 0
    assignment: int = 0
    weather: int = 0

    @classmethod
    def all(cls, seed: int) -> Seeds:
        return cls(training=seed, weights=seed, partition=seed, assignment=seed, weather=seed)
