"""Fisher information as values: the scalar made of squared gradient norms, and a device's window of past rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whalefl.errors import require, require_finite_number

Normalisation = Literal["trace", "unit", "mean"]


def fisher_trace(squared_norm: float, scored: int) -> float:
    r"""eq:fishertrace, its trace, estimated from one mini-batch.

    FI = E_x E_{y^ ~ p_W(y^|x)} [ g(x, y^) g(x, y^)^T ], with g the gradient of the loss for a label y^ drawn from the
    model itself. For the gradient of the *mean* loss over n scored predictions, n ||gradient||^2 is unbiased for
    tr(FI): given x the scores have mean zero, so all cross terms vanish.
    """
    return scored * squared_norm


@dataclass(frozen=True)
class FisherSettings:
    """On how many of a round's mini-batches Fisher information is measured, and what that costs.

    One measurement is an extra backward pass; `cost` is its price in training iterations (0.6 was measured for the
    CNN), which the latency model charges.
    """

    batches: int = 2
    cost: float = 0.6

    def __post_init__(self) -> None:
        require(self.batches >= 1, "batches", self.batches, "at least 1")
        require_finite_number("cost", self.cost, least=0)


@dataclass(frozen=True)
class FisherEntry:
    """What a device measured in one round, at the level it trained: one value for each measured mini-batch.

    `trace` is taken over the whole slice of `parameters` coordinates, `unit` over the coordinates of the smallest
    slice inside it, which makes values of different levels comparable.
    """

    level: int
    parameters: int
    trace: tuple[float, ...]
    unit: tuple[float, ...]

    def values(self, normalisation: Normalisation) -> tuple[float, ...]:
        """FI(k) for each measured mini-batch k."""
        if normalisation == "unit":
            return self.unit
        if normalisation == "mean":
            return tuple(value / self.parameters for value in self.trace)
        return self.trace


Window = tuple[FisherEntry, ...]
"""A device's last D measured rounds, oldest first."""


def push(window: Window, entry: FisherEntry, length: int) -> Window:
    """The window with a new round at its end, cut to its last `length` rounds."""
    return (*window, entry)[-length:]


def mean_square(window: Window, normalisation: Normalisation) -> float:
    """(1/|D|) sum_d (1/|B|) sum_k FI_{r-d}(k)^2 over the rounds there are and the mini-batches measured."""
    return _mean([_mean([v * v for v in entry.values(normalisation)]) for entry in window])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
