"""The pictures of a comparison: accuracy, levels and Fisher information over virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from whalefl.report.summary import Record, evaluated

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)

Runs = Mapping[str, Sequence[Sequence[Record]]]
"""label -> the records of each of its runs."""

_POINTS = 200


def save_plots(folder: Path, runs: Runs, target: float | None) -> list[str]:
    """Draw every picture that the runs have something for; returns the file names."""
    pictures: dict[str, Callable[[Runs, Any], None]] = {
        "accuracy.png": lambda r, axes: _accuracy(r, target, axes),
        "levels.png": _levels,
        "fisher.png": _fisher,
    }
    names = []
    for name, draw in pictures.items():
        shown = runs if name != "fisher.png" else {k: v for k, v in runs.items() if _has_fisher(v)}
        if not shown:
            continue
        wide = 1 if name == "accuracy.png" else len(shown)
        figure, axes = plt.subplots(
            1, wide, figsize=(2 + 4.2 * wide, 4.2), squeeze=False, layout="constrained", sharey=True
        )
        draw(shown, axes[0])
        figure.savefig(folder / name, dpi=130)
        plt.close(figure)
        names.append(name)
    return names


def _accuracy(runs: Runs, target: float | None, axes: Any) -> None:
    """Thin lines are seeds, thick ones their median."""
    axis = axes[0]
    for color, (label, seeds) in enumerate(runs.items()):
        curves = [([p["time_s"] for p in evaluated(r)], [100 * p["accuracy"] for p in evaluated(r)]) for r in seeds]
        for times, values in curves:
            axis.plot(times, values, color=f"C{color}", alpha=0.3, linewidth=0.8)
        axis.plot(*median_curve(curves), color=f"C{color}", linewidth=2, label=label)
    if target is not None:
        axis.axhline(100 * target, color="grey", linestyle=":", label=f"target {100 * target:.0f} %")
    axis.set(xlabel="virtual time (s)", ylabel="test accuracy of the global model (%)", ylim=(0, 100))
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)


def _levels(runs: Runs, axes: Any) -> None:
    """The mean width level of each kind of device."""
    for axis, (label, seeds) in zip(axes, runs.items(), strict=True):
        _by_kind(axis, seeds, "level")
        axis.set(title=label, xlabel="virtual time (s)")
        axis.set_yticks(range(1, 1 + max(d["level"] for r in seeds for x in r for d in x["devices"])))
    axes[0].set_ylabel("mean level (1 = full width)")
    axes[0].invert_yaxis()
    axes[-1].legend(fontsize="small")


def _fisher(runs: Runs, axes: Any) -> None:
    """The mean Fisher information that each kind of device measured."""
    for axis, (label, seeds) in zip(axes, runs.items(), strict=True):
        _by_kind(axis, seeds, "fisher")
        axis.set(title=label, xlabel="virtual time (s)", yscale="log")
    axes[0].set_ylabel("Fisher information (trace)")
    axes[-1].legend(fontsize="small")


def _by_kind(axis: Any, seeds: Sequence[Sequence[Record]], key: str) -> None:
    kinds = list(dict.fromkeys(d["kind"] for records in seeds for r in records for d in r["devices"]))
    for kind in kinds:
        curves = []
        for records in seeds:
            means = [(r["time_s"], _mean([d[key] for d in r["devices"] if d["kind"] == kind])) for r in records]
            present = [(t, m) for t, m in means if m is not None]
            if present:
                curves.append(([t for t, _ in present], [m for _, m in present]))
        if curves:
            axis.plot(*median_curve(curves), label=kind)
    axis.grid(alpha=0.3)


def _has_fisher(seeds: Sequence[Sequence[Record]]) -> bool:
    return any(d["fisher"] is not None for r in seeds for x in r for d in x["devices"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


Curves = Sequence[tuple[Sequence[float], Sequence[float]]]


def median_curve(curves: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The median of several curves over the time that all of them cover; a value holds until the next one."""
    grid, held = _held(curves)
    return grid, np.median(held, axis=0)


def mean_curve(curves: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of several curves, likewise: for whole numbers, whose median jumps."""
    grid, held = _held(curves)
    return grid, np.mean(held, axis=0)


def _held(curves: Curves) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    start, end = max(times[0] for times, _ in curves), min(times[-1] for times, _ in curves)
    grid = np.linspace(start, max(start, end), _POINTS)
    held = [np.asarray(values)[np.searchsorted(times, grid, side="right") - 1] for times, values in curves]
    return grid, held
