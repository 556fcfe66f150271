"""A comparison as a table: the cells once, then Markdown or the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from whalefl.report.comparison import Row
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
            f"{row.reached} of {row.seeds}",
            row.time_s.text(".0f") + " s",
            row.rounds.text(".0f"),
            _speedup(row),
            f"{100 * row.final_accuracy:.1f} ± {100 * row.spread:.1f} %"
            if row.seeds > 1
            else f"{100 * row.final_accuracy:.1f} %",
            f"{100 * row.mean_share:.0f} %",
            _scaled(row.energy_j.value, row.energy_j.sign, (("MJ", 1e6), ("kJ", 1e3), ("J", 1))),
            _scaled(row.bytes_sent.value, row.bytes_sent.sign, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))),
        )
        for row in rows
    ]


def _speedup(row: Row) -> str:
    if row.speedup is None or row.speedup_range is None:
        return "not decided"
    low, high = row.speedup_range
    spread = f" ({low:.2f}-{high:.2f})" if row.seeds > 1 and low != high else ""
    return row.speedup.text(".2f") + "x" + spread


def _scaled(value: float, sign: str, units: Sequence[tuple[str, float]]) -> str:
    unit, factor = next((u for u in units if value >= u[1]), units[-1])
    return f"{sign}{value / factor:.3g} {unit}"


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEADER, tuple("---" for _ in HEADER), *cells(rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def notes(target: float | None, reference: str) -> str:
    """What the columns mean."""
    if target is None:
        return "No target accuracy is set: times, energy and bytes are those of the whole run.\n"
    return (
        f"Target: {100 * target:.0f} % of the test set, as the mean of {WINDOW} evaluations; times are virtual. "
        "≥ marks a bound: the run ended before the target was reached. "
        f"Speed-up: time of {reference} over time of the method, the same seed and weather paired, geometric mean "
        "(smallest-largest). Share trained: of the parameters, mean over devices and rounds. "
        "Energy and bytes sent: until the target.\n"
    )
