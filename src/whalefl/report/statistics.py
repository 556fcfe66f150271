"""What several seeds say together: means with the interval in which the true one probably lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from whalefl.report.comparison import Bounded, Unit, geometric_mean, paired_ratio
from whalefl.report.summary import RunSummary
from whalefl.rng import stream

DRAWS = 10_000
LEVEL = 0.95
FEWEST = 3

COVERED = {3: 0.75, 5: 0.84, 10: 0.90}
"""How often the interval of so many normal values holds the true mean: of few values less often than it says."""

Interval = tuple[float, float]


def bootstrap_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % percentile interval of the mean, from resampled values; None for fewer than three of them.

    Of three values it is no more than their range, and covers less than it says. The resampling is seeded, so that the
    same values always give the same interval.
    """
    if len(values) < FEWEST:
        return None
    rng = stream(0, "bootstrap", len(values))
    picks = rng.integers(len(values), size=(DRAWS, len(values)))
    means = np.asarray(values, dtype=np.float64)[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Speedup:
    """The geometric mean of paired ratios and its interval.

    `pairs` of `seeds` seeds have a ratio: where neither run reached the target there is none, nor in rounds where one
    diverged. A sign on `value` says that some ratios are only bounds, and then so are the mean and its interval.
    """

    value: Bounded | None
    interval: Interval | None
    pairs: int
    seeds: int


def speedup(reference: Mapping[int, RunSummary], runs: Mapping[int, RunSummary], unit: Unit = "seconds") -> Speedup:
    """How many times sooner than the reference: seeds paired, runs that never reached counted as bounds."""
    both = [seed for seed in runs if seed in reference]
    ratios = [paired_ratio(reference[seed], runs[seed], unit) for seed in both]
    known = [ratio for ratio in ratios if ratio is not None]
    logs = bootstrap_interval([log(ratio.value) for ratio in known])
    interval = None if logs is None else (exp(logs[0]), exp(logs[1]))
    return Speedup(geometric_mean(known), interval, len(known), len(both))


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its interval."""

    value: float
    interval: Interval | None
    seeds: int


def mean_of(values: Sequence[float]) -> Mean | None:
    if not values:
        return None
    return Mean(sum(values) / len(values), bootstrap_interval(values), len(values))
