"""A comparison as a table: the cells once, then Markdown or the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from whalefl.markdown import grid
from whalefl.report.comparison import Bounded, Row
from whalefl.report.summary import WINDOW

HEADER = (
    "method",
    "reached",
    "time to target",
    "rounds",
    "speed-up",
    "final accuracy",
    "share trained",
    "energy",
    "sent",
)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table's text, one tuple a row."""
    return [
        (
            row.label,
            _reached(row),
            row.time_s.text(".0f") + " s",
            row.rounds.text(".0f"),
            _speedup(row),
            f"{100 * row.final_accuracy:.1f} ± {100 * row.spread:.1f} %"
            if row.seeds > 1
            else f"{100 * row.final_accuracy:.1f} %",
            "-" if row.mean_share is None else f"{100 * row.mean_share:.0f} %",
            _scaled(row.energy_j, "J"),
            _scaled(row.bytes_sent, "B"),
        )
        for row in rows
    ]


def _reached(row: Row) -> str:
    return f"{row.reached} of {row.seeds}" if row.has_target else "no target"


def _speedup(row: Row) -> str:
    if row.speedup is None or row.speedup_range is None:
        return "not decided" if row.has_target else "-"
    low, high = row.speedup_range
    spread = f" ({low:.2f}-{high:.2f})" if row.seeds > 1 and low != high else ""
    pairs = f" [{row.pairs} of {row.seeds} pairs]" if row.pairs < row.seeds else ""
    return row.speedup.text(".2f") + "x" + spread + pairs


def _scaled(amount: Bounded, unit: str) -> str:
    """Three digits and the prefix that fits: 1.28 kJ."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    value, power = float(f"{amount.value:.3g}"), 0
    while value >= 1000 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    return f"{amount.sign}{value:.3g} {prefixes[power]}{unit}"


def markdown(rows: Sequence[Row]) -> str:
    return grid([HEADER, *cells(rows)])


def notes(target: float | None, reference: str) -> str:
    """What the columns mean."""
    if target is None:
        return "No target accuracy is set: times, energy and bytes are those of the whole run.\n"
    return (
        f"Target: {100 * target:.0f} % of the test set, as the mean of {WINDOW} evaluations; times are virtual. "
        "≥ and ≤ mark bounds (~: both): a run ended before the target was reached. "
        f"Speed-up: time of {reference} over time of the method, runs with the same seed paired (which have the same "
        "weather, unless it is set otherwise), geometric mean (smallest-largest). Share trained: of the parameters, "
        "mean over devices and rounds. Energy and bytes sent: until the target.\n"
    )
