"""The picture of who owns what: devices x classes, or bars where there are too many classes to tell apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from whalefl.runs import OWNERSHIP, RunFolder

PICTURE = "ownership.png"

_MOST_ROWS = 60
"""More devices than these get one name for each run of a kind, and no numbers."""

_MOST_COLUMNS = 20
"""More classes than these get colours only, and a scale that explains them."""


def save_ownership_plot(folder: Path, run: Path | None = None) -> str:
    """Draw the ownership.json of `run`, by default of `folder` itself, into `folder`; returns the file name."""
    content = _read(run or folder)
    count = len(content["devices"])
    height = 1.2 + (max(2.0, 0.26 * count) if count <= _MOST_ROWS else 9.0)
    if "counts" in content["devices"][0]:
        figure = Figure(figsize=(3.2 + max(2.8, min(0.42 * content["classes"], 9.0)), height), layout="constrained")
        _heat_map(figure, content)
    else:
        figure = Figure(figsize=(9.0, height), layout="constrained")
        _bars(figure, content)
    figure.savefig(folder / PICTURE, dpi=130)
    return PICTURE


def common_run(runs: Mapping[str, Mapping[int, RunFolder]]) -> Path | None:
    """The folder whose picture stands for all: the first run's, if the first run of every label is dealt out alike."""
    firsts = [next(iter(by_seed.values())).path for by_seed in runs.values()]
    if not all((path / OWNERSHIP).exists() for path in firsts):
        return None
    contents = [_read(path) for path in firsts]
    return firsts[0] if all(content == contents[0] for content in contents) else None


def _read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / OWNERSHIP).read_text(encoding="utf8"))
    return content


def _heat_map(figure: Figure, content: Mapping[str, Any]) -> None:
    devices = content["devices"]
    counts = np.array([device["counts"] for device in devices])
    few_rows, few_columns = len(devices) <= _MOST_ROWS, content["classes"] <= _MOST_COLUMNS
    axis = figure.subplots()
    image = axis.imshow(np.ma.masked_equal(counts, 0), cmap="Blues", aspect="auto", vmin=0, interpolation="nearest")
    if few_rows and few_columns:
        _write_numbers(axis, counts)
    else:
        figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02)
    if few_columns:
        axis.set_xticks(range(content["classes"]))
    if few_rows:
        totals = axis.secondary_yaxis("right")
        totals.set_yticks(range(len(devices)), [f"{device['examples']:,}" for device in devices], fontsize=8)
        totals.tick_params(length=0)
        totals.set_ylabel("examples in all")
    _name_rows(axis, devices)
    axis.set_xlabel("class")
    axis.set_title(f"{content['task']}: how often each device has each class", fontsize="medium")


def _write_numbers(axis: Axes, counts: NDArray[np.int64]) -> None:
    dark = 0.6 * counts.max()
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > dark else "black"
            axis.text(column, row, str(count), ha="center", va="center", fontsize=7, color=color)


def _bars(figure: Figure, content: Mapping[str, Any]) -> None:
    devices = content["devices"]
    axes = figure.subplots(1, 2, sharey=True)
    shown = {"examples": "examples", "labels": f"distinct labels (in texts: words) out of {content['classes']:,}"}
    for color, (axis, (key, label)) in enumerate(zip(axes, shown.items(), strict=True)):
        bars = axis.barh(range(len(devices)), [device[key] for device in devices], color=f"C{color}", alpha=0.8)
        if len(devices) <= _MOST_ROWS:
            axis.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
        axis.margins(x=0.15)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlabel(label)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        _name_rows(axis, devices)
    axes[0].set_ylim(len(devices) - 0.5, -0.5)
    figure.suptitle(f"{content['task']}: what each device has", fontsize="medium")


def _name_rows(axis: Axes, devices: Sequence[Mapping[str, Any]]) -> None:
    """Kind and number of every device, or, if they are many, of the first one of each run of a kind."""
    kinds = [device["kind"] for device in devices]
    firsts = [row for row in range(len(kinds)) if row == 0 or kinds[row] != kinds[row - 1]]
    named = range(len(kinds)) if len(kinds) <= _MOST_ROWS else firsts
    axis.set_yticks(named, [f"{kinds[row]} {devices[row]['device']}" for row in named], fontsize=8)
    for row in firsts[1:]:
        axis.axhline(row - 0.5, color="grey", linewidth=0.6)
