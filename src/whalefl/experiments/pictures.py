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
from whalefl.experiments.curves import accuracy_curve, coverage_curve, fisher_curve, share_curve
from whalefl.experiments.protocol import Setting
from whalefl.experiments.reading import metric_of, speedup_over
from whalefl.experiments.store import Store
from whalefl.experiments.tables import Pair, final_of
from whalefl.federation.methods import check_method
from whalefl.report.plots import mean_curve, median_curve
from whalefl.report.statistics import Interval


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
        curves = [accuracy_curve(run, metric) for run in store.runs(cell).values()]
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
