"""How sizes move over a run: early, in the middle and late; with Fisher information; and how unsteady accuracy is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import mean

import numpy as np

from whalefl.experiments.cells import Cell
from whalefl.experiments.curves import share_curve, shares_by_round
from whalefl.experiments.reading import metric_of
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.tables import NONE, NOT_RUN
from whalefl.markdown import grid
from whalefl.report.compact import level_lines
from whalefl.report.statistics import Mean, mean_of
from whalefl.report.summary import evaluated
from whalefl.scheduling.replay import ABSENT, line_of_levels


@dataclass(frozen=True)
class TrajectoryTable:
    """The share trained in each third of the virtual time, for some kinds of device and for all; then other cells."""

    title: str
    cell: Cell
    kinds: tuple[str, ...]
    others: tuple[Cell, ...] = ()

    def markdown(self, store: Store) -> str:
        header = (
            "devices",
            "share early",
            "share in the middle",
            "share late",
            "rank correlation of size with the trace of the D rounds before",
            "with the trace of the smallest slice",
            "mean step of accuracy from round to round (points)",
        )
        rows = [_row(store, self.cell, kind) for kind in self.kinds]
        rows += [_row(store, cell, None) for cell in (self.cell, *self.others)]
        return f"### {self.title}\n\n" + grid([header, *rows])


def _row(store: Store, cell: Cell, kind: str | None) -> tuple[str, ...]:
    runs = list(store.runs(cell).values())
    name = kind or f"{cell.label}, all devices"
    if not runs:
        return (name, NOT_RUN, *[""] * 5)
    thirds = [mean(part) for part in zip(*(shares_by_third(run, kind) for run in runs), strict=True)]
    trace, unit = correlation(runs, kind, kind or "all"), correlation(runs, None, "unit") if kind is None else None
    metric = metric_of(store, cell.setting)
    steps = [step for run in runs if (step := unsteadiness(run, metric)) is not None]
    return (
        name,
        *(f"{third:.0f} %" for third in thirds),
        NONE if trace is None else f"{trace.value:+.2f}",
        NONE if unit is None else f"{unit.value:+.2f}",
        f"{100 * mean(steps):.2f}" if kind is None and steps else "",
    )


def shares_by_third(run: Finished, kind: str | None = None) -> tuple[float, float, float]:
    """The mean share trained (%) in the first, second and last third of the virtual time."""
    times, shares = share_curve(run, kind, smooth=1)
    place = np.minimum((3 * np.asarray(times) / times[-1]).astype(int), 2)
    early, middle, late = (
        float(np.mean(np.asarray(shares)[place == third])) if (place == third).any() else float(shares[-1])
        for third in range(3)
    )
    return early, middle, late


def correlation(runs: Sequence[Finished], kind: str | None, column: str) -> Mean | None:
    """The rank correlation over time between the share trained and the Fisher information it was chosen from."""
    pairs = [sizes_and_reasons(run, kind, column) for run in runs if run.compact["fisher"] is not None]
    found = [rank_correlation(sizes, reasons) for sizes, reasons in pairs]
    return mean_of([value for value in found if value is not None])


def sizes_and_reasons(run: Finished, kind: str | None, column: str) -> tuple[list[float], list[float]]:
    """The mean share trained in every stretch of rounds, and the root mean square of the Fisher information of the D
    rounds before it: what training efficiency is made of."""
    fisher, shares = run.compact["fisher"], shares_by_round(run, kind)
    ends, values = fisher["round"], fisher[column]
    width = max(1, round(run.run.experiment.whale.window * len(ends) / run.compact["rounds"]))
    sizes, reasons = [], []
    for place in range(1, len(ends)):
        own = [share for share in shares[ends[place - 1] : ends[place]] if share is not None]
        before = [value for value in values[max(0, place - width) : place] if value is not None]
        if own and before:
            sizes.append(mean(own))
            reasons.append(sqrt(mean(value**2 for value in before)))
    return sizes, reasons


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, equal values sharing theirs; None where one side never changes."""
    if len(first) < 2:
        return None
    ranks = [_ranks(values) for values in (first, second)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]


def unsteadiness(run: Finished, metric: str = "accuracy") -> float | None:
    """The mean change of accuracy from one evaluation to the next, up or down, in the second half of a run."""
    values = [point["accuracy"] for point in evaluated(run.records(metric))]
    steps = np.abs(np.diff(values[len(values) // 2 :]))
    return float(steps.mean()) if len(steps) else None


def restlessness(run: Finished) -> float | None:
    """The mean change of the share that a device trains from one round to the next, up or down."""
    shares = {ABSENT: None} | {line_of_levels([int(level)]): share for level, share in run.compact["shares"].items()}
    pairs = [pair for lines in pairwise(level_lines(run.compact)) for pair in zip(*lines, strict=True)]
    changes = [(shares[before], shares[now]) for before, now in pairs]
    steps = [abs(now - before) for before, now in changes if before is not None and now is not None]
    return mean(steps) if steps else None
