"""The work that everybody does, in plain torch: it is imported into the peers' environments, which lack whalefl.

Every round, each client trains the CNN on 10 mini-batches of 10 of its own 100 random images.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor, nn

ITERATIONS, BATCH, CLASSES = 10, 10, 10
LR, MOMENTUM, WEIGHT_DECAY, CLIP = 0.01, 0.9, 5e-4, 1.0
CORES = 2


@dataclass(frozen=True)
class Work:
    """So many clients, each with a CNN of these channels."""

    clients: int
    channels: tuple[int, ...]


WORKS = {"full": Work(20, (64, 128, 256, 512)), "narrow": Work(100, (4, 8, 16, 32))}


class CNN(nn.Module):
    """Four blocks of [conv 3, batch norm, ReLU, max pool 2], the last pool a global average, and a classifier."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise([1, *channels]):
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after, track_running_stats=False),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        layers[-1] = nn.AdaptiveAvgPool2d(1)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1], CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def examples(client: int) -> tuple[Tensor, Tensor]:
    """A client's images, normalised, and their labels."""
    rng = torch.Generator().manual_seed(client)
    count = ITERATIONS * BATCH
    return torch.randn(count, 1, 28, 28, generator=rng), torch.randint(CLASSES, (count,), generator=rng)


class Gate:
    """Where a contestant waits for its turn: it answers a line on its input with the seconds of a round.

    So all of them can be kept running and take turns, and nobody's start is counted.
    """

    def __init__(self) -> None:
        self.start: float | None = None

    def pass_(self, last: bool = False) -> None:
        """End a round, if one is running, and wait until the next one may begin, if there is one."""
        if self.start is not None:
            print(f"SECONDS {perf_counter() - self.start}", flush=True)
        else:
            print("READY", flush=True)
        if not last:
            sys.stdin.readline()
            self.start = perf_counter()
