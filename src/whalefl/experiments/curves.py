"""What moves over a run: Fisher information, sizes and coverage, as columns over hours or rounds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from whalefl.experiments.store import Finished
from whalefl.federation.methods import check_method
from whalefl.report.compact import level_lines
from whalefl.report.summary import evaluated
from whalefl.scheduling.replay import levels_of_line
from whalefl.subnet.plans import EXTRACTIONS

Curve = tuple[Sequence[float], Sequence[float]]
"""Hours, and a value at each."""


def accuracy_curve(run: Finished, metric: str) -> Curve:
    """Hours and accuracy (%) of every evaluation."""
    points = evaluated(run.records(metric))
    return [p["time_s"] / 3600 for p in points], [100 * p["accuracy"] for p in points]


def fisher_curve(run: Finished, column: str) -> Curve:
    """Hours and Fisher information of one column of the compact metrics."""
    fisher, times = run.compact["fisher"], run.compact["time_s"]
    known = [(times[r - 1] / 3600, v) for r, v in zip(fisher["round"], fisher[column], strict=True) if v is not None]
    return [t for t, _ in known], [v for _, v in known]


def shares_by_round(run: Finished, kind: str | None) -> list[float | None]:
    """The mean share of the parameters (%) that a kind of device trained in every round; None where it sat out.

    It does not depend on which device trained what: equal rounds are to be equal, since they are ranked.
    """
    shares = [[100 * d["share"] for d in r["devices"] if kind in (None, d["kind"])] for r in run.records()]
    return [fmean(own) if own else None for own in shares]


def share_curve(run: Finished, kind: str | None, smooth: int = 10) -> Curve:
    """Hours and the mean share of the parameters that a kind of device trained, over so many rounds at a time."""
    shares = zip(run.compact["time_s"], shares_by_round(run, kind), strict=True)
    known = [(time_s / 3600, share) for time_s, share in shares if share is not None]
    values = np.array([value for _, value in known])
    width = min(smooth, len(values))
    kernel = np.ones(width)
    counts = np.convolve(np.ones_like(values), kernel)[: len(values)]
    return [t for t, _ in known], list(np.convolve(values, kernel)[: len(values)] / counts)


def coverage_curve(run: Finished, column: str) -> Curve | None:
    """Hours and one quantity of the coverage; regions mean something for nested slices only."""
    times = run.compact["time_s"]
    if column == "regions":
        if not is_nested(run):
            return None
        return [t / 3600 for t in times], regions(run)
    coverage, scale = run.compact["coverage"], 100 if column == "untouched" else 1
    return [times[r - 1] / 3600 for r in coverage["round"]], [scale * value for value in coverage[column]]


def is_nested(run: Finished) -> bool:
    """Whether slices of all devices and rounds lie inside each other."""
    extraction, _ = check_method(run.run.experiment.method)
    return EXTRACTIONS[extraction].nested


def regions(run: Finished) -> list[float]:
    """|S_r|: the regions S^P .. S^p that the widest slice of each round holds."""
    levels = run.run.experiment.ladder.levels
    return [float(levels - min(levels_of_line(line)) + 1) for line in level_lines(run.compact)]
