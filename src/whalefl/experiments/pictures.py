"""Pictures as values: which cells they show, drawn from compact metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from whalefl.experiments.cells import Cell
from whalefl.experiments.protocol import Setting
from whalefl.experiments.reading import metric_of, speedup_over
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.tables import Pair, final_of
from whalefl.federation.methods import check_method
from whalefl.report.compact import level_lines
from whalefl.report.plots import mean_curve, median_curve
from whalefl.report.statistics import Interval
from whalefl.report.summary import evaluated
from whalefl.scheduling.replay import levels_of_line
from whalefl.subnet.plans import EXTRACTIONS

Curve = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves of several cells in one setting."""

    title: str
    setting: Setting
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Accuracies:
    """Accuracy over virtual time: the median of the seeds, and a band from the lowest to the highest of them."""

    name: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 4

    def draw(self, store: Store) -> Figure | None:
        shown = [panel for panel in self.panels if any(store.runs(cell) for cell in panel.cells)]
        if not shown:
            return None
        columns = min(self.columns, len(shown))
        rows = -(-len(shown) // columns)
        figure, axes = plt.subplots(
            rows, columns, figsize=(1 + 4.2 * columns, 3.8 * rows), squeeze=False, layout="constrained"
        )
        for axis in axes.flat[len(shown) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes.flat, shown, strict=False):
            _accuracies(axis, store, panel)
        return figure


def _accuracies(axis: Any, store: Store, panel: Panel) -> None:
    metric = metric_of(store, panel.setting)
    for color, cell in enumerate(panel.cells):
        curves = [_accuracy_curve(run, metric) for run in store.runs(cell).values()]
        curves = [curve for curve in curves if len(curve[0]) > 0]
        if not curves:
            continue
        times, middle = median_curve(curves)
        axis.plot(times, middle, color=f"C{color}", label=f"{cell.label} ({len(curves)})", linewidth=1.6)
        if len(curves) > 1:
            held = [np.asarray(v)[np.searchsorted(t, times, side="right") - 1] for t, v in curves]
            axis.fill_between(times, np.min(held, axis=0), np.max(held, axis=0), color=f"C{color}", alpha=0.15)
    axis.axhline(100 * panel.setting.target, color="grey", linestyle=":")
    axis.set(title=panel.title, xlabel="virtual hours", ylabel="test accuracy (%)")
    axis.set_xscale("log")  # what is fast happens early
    axis.xaxis.set_major_formatter("{x:g}")
    low, high = axis.get_ylim()
    axis.set_yscale("function", functions=(_spread, _narrowed))
    axis.set_yticks([tick for tick in _ACCURACIES if low <= tick <= high], minor=False)
    axis.set_ylim(low, min(high, 100))
    axis.legend(fontsize="small", loc="upper left")
    axis.grid(alpha=0.3)


_ACCURACIES = (20, 40, 60, 70, 80, 85, 90, 95, 97, 98, 99, 100)


def _spread(accuracy: Any) -> Any:
    """Near 100 % a point more is as far on paper as several are further down."""
    return -np.log10(np.maximum(101 - np.asarray(accuracy, dtype=float), 1e-3))


def _narrowed(height: Any) -> Any:
    """The inverse of `_spread`."""
    return 101 - 10 ** -np.asarray(height, dtype=float)


def _accuracy_curve(run: Finished, metric: str) -> Curve:
    points = evaluated(run.records(metric))
    return [p["time_s"] / 3600 for p in points], [100 * p["accuracy"] for p in points]


@dataclass(frozen=True)
class Bars:
    """Speed-ups of pairs with their intervals, and the paper's numbers beside them."""

    name: str
    caption: str
    pairs: tuple[Pair, ...]

    def draw(self, store: Store) -> Figure | None:
        found = [(pair, speedup_over(store, pair.reference, pair.cell)) for pair in self.pairs]
        rows = [
            Row(f"{pair.cell.setting.name}: {pair.name}", value.value, ratio.interval, pair.paper, value.sign)
            for pair, ratio in found
            if ratio is not None and (value := ratio.value) is not None
        ]
        if not rows:
            return None
        figure, axis = _rows_of_dots(rows)
        axis.axvline(1.0, color="grey", linestyle=":")
        axis.set(xscale="log", xlabel="times sooner to the target (red x: the paper)")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # more labels than these would overlap
        axis.xaxis.set_major_formatter("{x:g}x")
        axis.xaxis.set_minor_formatter(NullFormatter())
        return figure


@dataclass(frozen=True)
class FinalDots:
    """Final accuracies with their intervals, and the paper's numbers beside them."""

    name: str
    caption: str
    cells: tuple[tuple[Cell, float], ...]

    def draw(self, store: Store) -> Figure | None:
        found = [(cell, final_of(store, cell), paper) for cell, paper in self.cells]
        rows = [
            Row(f"{cell.setting.name}: {cell.label}", final.value, final.interval, paper)
            for cell, final, paper in found
            if final is not None
        ]
        if not rows:
            return None
        figure, axis = _rows_of_dots(rows)
        axis.set_xlabel("final accuracy (red x: the paper)")
        axis.xaxis.set_major_formatter(PercentFormatter(xmax=1))
        return figure


@dataclass(frozen=True)
class Row:
    """A figure of ours, its interval, the paper's, and whether ours is only a bound (≥, ≤ or ~)."""

    label: str
    value: float
    interval: Interval | None
    paper: float | None
    sign: str = ""


def _rows_of_dots(rows: Sequence[Row]) -> tuple[Figure, Any]:
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.36 * len(rows)), layout="constrained")
    for height, row in enumerate(rows):
        axis.plot(row.value, height, "o", color="C0")
        if row.interval is not None:
            axis.plot(row.interval, (height, height), color="C0", linewidth=2)
        if row.sign:
            axis.annotate(f" {row.sign}", (row.value, height), va="bottom")
        if row.paper is not None:
            axis.plot(row.paper, height, "x", color="C3")
    axis.set_yticks(range(len(rows)), [row.label for row in rows])
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    return figure, axis


@dataclass(frozen=True)
class FisherAndSize:
    """Fisher information and the size trained over time: three kinds of device, and all devices together."""

    name: str
    caption: str
    cell: Cell
    kinds: tuple[str, ...]

    def draw(self, store: Store) -> Figure | None:
        runs = [run for run in store.runs(self.cell).values() if run.compact["fisher"]]
        if not runs:
            return None
        columns = len(self.kinds) + 1
        figure, axes = plt.subplots(1, columns, figsize=(1 + 4.4 * columns, 3.8), layout="constrained")
        for axis, kind in zip(axes, (*self.kinds, None), strict=True):
            traces = [fisher_curve(run, kind or "all") for run in runs]
            axis.plot(*median_curve(traces), color="C3", label="over the slice trained")
            if kind is None:
                units = [fisher_curve(run, "unit") for run in runs]
                axis.plot(*median_curve(units), "--", color="C1", label="over the smallest slice in it")
                figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
            axis.set(title=kind or "all devices", xlabel="virtual hours", yscale="log")
            sizes = axis.twinx()
            sizes.plot(*median_curve([share_curve(run, kind) for run in runs]), color="C0", alpha=0.7)
            sizes.set_ylim(0, 105)
            sizes.set_ylabel("share of the parameters trained (%)", color="C0")
            axis.set_ylabel("Fisher information", color="C3")
        return figure


def fisher_curve(run: Finished, column: str) -> Curve:
    """Hours and Fisher information of one column of the compact metrics."""
    fisher, times = run.compact["fisher"], run.compact["time_s"]
    known = [(times[r - 1] / 3600, v) for r, v in zip(fisher["round"], fisher[column], strict=True) if v is not None]
    return [t for t, _ in known], [v for _, v in known]


def shares_by_round(run: Finished, kind: str | None) -> list[float | None]:
    """The mean share of the parameters (%) that a kind of device trained in every round; None where it sat out."""
    shares = [[100 * d["share"] for d in r["devices"] if kind in (None, d["kind"])] for r in run.records()]
    return [sum(own) / len(own) if own else None for own in shares]


def share_curve(run: Finished, kind: str | None, smooth: int = 10) -> Curve:
    """Hours and the mean share of the parameters that a kind of device trained, over so many rounds at a time."""
    shares = zip(run.compact["time_s"], shares_by_round(run, kind), strict=True)
    known = [(time_s / 3600, share) for time_s, share in shares if share is not None]
    values = np.array([value for _, value in known])
    width = min(smooth, len(values))
    kernel = np.ones(width)
    counts = np.convolve(np.ones_like(values), kernel)[: len(values)]
    return [t for t, _ in known], list(np.convolve(values, kernel)[: len(values)] / counts)


@dataclass(frozen=True)
class CoverageCurves:
    """The quantities of the convergence theorem over time: regions trained, |M*|, and the share left untouched."""

    name: str
    caption: str
    cells: tuple[Cell, ...]

    def draw(self, store: Store) -> Figure | None:
        if not any(store.runs(cell) for cell in self.cells):
            return None
        figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
        columns = ("regions", "least", "untouched")
        titles = ("regions trained in a round (prefix only)", "|M*|", "share of the model untouched (%)")
        for color, cell in enumerate(self.cells):
            runs = list(store.runs(cell).values())
            for axis, column in zip(axes, columns, strict=True):
                curves = [curve for run in runs if (curve := coverage_curve(run, column)) is not None]
                if curves:
                    axis.plot(*mean_curve(curves), _dashes(cell.method), color=f"C{color}", label=cell.label)
        for axis, title in zip(axes, titles, strict=True):
            axis.set(title=title, xlabel="virtual hours")
            axis.grid(alpha=0.3)
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=len(self.cells))
        return figure


def _dashes(method: str) -> str:
    """A line for each extraction, so that curves which coincide can be told apart."""
    return {"prefix": "-", "random": "--", "rolling": ":"}[check_method(method)[0]]


def coverage_curve(run: Finished, column: str) -> Curve | None:
    """Hours and one quantity of the coverage; regions mean something for nested slices only."""
    times = run.compact["time_s"]
    if column == "regions":
        if not nested(run):
            return None
        return [t / 3600 for t in times], regions(run)
    coverage, scale = run.compact["coverage"], 100 if column == "untouched" else 1
    return [times[r - 1] / 3600 for r in coverage["round"]], [scale * value for value in coverage[column]]


def nested(run: Finished) -> bool:
    """Whether slices of all devices and rounds lie inside each other."""
    extraction, _ = check_method(run.run.experiment.method)
    return EXTRACTIONS[extraction].nested


def regions(run: Finished) -> list[float]:
    """|S_r|: the regions S^P .. S^p that the widest slice of each round holds."""
    levels = run.run.experiment.ladder.levels
    return [float(levels - min(levels_of_line(line)) + 1) for line in level_lines(run.compact)]
