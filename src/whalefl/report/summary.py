"""One run in a few numbers: when it reached its target, where it ended, what it spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

Record = dict[str, Any]

WINDOW = 5
"""A target counts as reached when the mean of this many evaluations, starting there, is at or above it."""

_ROUNDING = 1e-9  # far below one test example, and above what summing in floating point can lose

LAST_SHARE = 0.1
"""The final accuracy is the mean over this last share of the virtual time."""


@dataclass(frozen=True)
class RunSummary:
    """What a run came to. `reached_*` and `crossed_s` are None if the target was not reached, or if there is none.

    Energy and bytes are what was spent until the target was reached, or in the whole run if it never was. `round_s` is
    how long a round lasted on average; it and `mean_share` are None where the first round diverged.
    """

    rounds: int
    time_s: float
    round_s: float | None
    final_accuracy: float
    mean_share: float | None
    reached_s: float | None
    reached_round: int | None
    crossed_s: float | None
    energy_j: float
    bytes_sent: int
    has_target: bool = True
    diverged: bool = False

    @property
    def censored(self) -> bool:
        """Whether the run ended before it reached its target, so that what it spent is only a bound."""
        return self.has_target and self.reached_s is None


def summarise(records: Sequence[Record], target: float | None) -> RunSummary:
    """The summary of a run from the lines of its metrics.jsonl."""
    reached = time_to_target(records, target) if target is not None else None
    spent = records if reached is None else [r for r in records if r["round"] <= reached["round"]]
    return RunSummary(
        rounds=len(records),
        time_s=records[-1]["time_s"],
        round_s=records[-1]["time_s"] / len(records),
        final_accuracy=final_accuracy(records),
        mean_share=mean_share(records),
        reached_s=None if reached is None else reached["time_s"],
        reached_round=None if reached is None else reached["round"],
        crossed_s=first_crossing(records, target) if target is not None else None,
        energy_j=sum(_energy_j(record) for record in spent),
        bytes_sent=sum(d["bytes_up"] for r in spent for d in r["devices"]),
        has_target=target is not None,
    )


def summarise_diverged(records: Sequence[Record], target: float | None, horizon_s: float | None) -> RunSummary:
    """The summary of a run that broke off in the round after these.

    It never reached its target, even if it had been there, however long it had been given, and its model, which is
    none any more, gets nothing right.
    """
    ended_s = records[-1]["time_s"] if records else 0.0
    return RunSummary(
        rounds=len(records) + 1,
        time_s=max(ended_s, horizon_s or 0.0),
        round_s=ended_s / len(records) if records else None,
        final_accuracy=0.0,
        mean_share=mean_share(records) if records else None,
        reached_s=None,
        reached_round=None,
        crossed_s=None,
        energy_j=sum(_energy_j(record) for record in records),
        bytes_sent=sum(d["bytes_up"] for r in records for d in r["devices"]),
        has_target=target is not None,
        diverged=True,
    )


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _energy_j(record: Record) -> float:
    """What the devices of a round spent together; compact metrics hold the sum itself."""
    if "energy_j" in record:
        return float(record["energy_j"])
    return float(sum(sum(device["energy"].values()) for device in record["devices"]))


def evaluated(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["accuracy"] is not None]


def time_to_target(records: Sequence[Record], target: float) -> Record | None:
    """The first round from which the mean of `WINDOW` evaluations is at or above the target."""
    points = evaluated(records)
    for start in range(len(points) - WINDOW + 1):
        mean = sum(p["accuracy"] for p in points[start : start + WINDOW]) / WINDOW
        if mean >= target - _ROUNDING:
            return points[start]
    return None


def first_crossing(records: Sequence[Record], target: float) -> float | None:
    """The virtual time of the first single evaluation at or above the target."""
    return next((p["time_s"] for p in evaluated(records) if p["accuracy"] >= target), None)


def final_accuracy(records: Sequence[Record]) -> float:
    """The mean accuracy over the last tenth of the virtual time."""
    points = evaluated(records)
    start = points[-1]["time_s"] * (1 - LAST_SHARE)
    last = [p["accuracy"] for p in points if p["time_s"] >= start]
    return float(sum(last) / len(last))


def mean_share(records: Sequence[Record]) -> float:
    """The mean over devices and rounds of the share of the model's parameters that was trained."""
    shares = [d["share"] for r in records for d in r["devices"]]
    return float(sum(shares) / len(shares))
