"""A run in one small file: what tables and pictures need of its metrics, and nothing else.

Every round keeps its time, its accuracy, the level of every device and the energy spent. Coverage and Fisher
information are means over at most `POINTS` stretches of rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from whalefl.report.summary import Record
from whalefl.scheduling.replay import ABSENT, line_of_levels

Compact = dict[str, Any]

POINTS = 200


def compact_metrics(records: Sequence[Record], kinds: Sequence[str]) -> Compact:
    """The columns of a run, from the lines of its metrics.jsonl and the kind of every device of its fleet: not all of
    these may ever have taken part."""
    shares = {device["level"]: device["share"] for record in records for device in record["devices"]}
    lines = [_line(record, len(kinds)) for record in records]
    more = list(dict.fromkeys(name for record in records for name in record["metrics"]))
    return {
        "rounds": len(records),
        "kinds": list(kinds),
        "shares": {str(level): round(shares[level], 6) for level in sorted(shares)},
        "bytes": max((d["bytes_up"] / d["share"] for record in records for d in record["devices"]), default=0),
        "threshold": records[-1]["threshold"] if records else None,
        "time_s": [round(record["time_s"], 2) for record in records],
        "accuracy": [_digits(record["accuracy"], 4) for record in records],
        "more": {name: [_digits(record["metrics"].get(name), 4) for record in records] for name in more},
        "energy_j": [round(sum(sum(d["energy"].values()) for d in record["devices"])) for record in records],
        "levels": _changes(lines),
        "coverage": _binned(records, {key: _coverage(key) for key in ("least", "untouched", "mean_age")}, 4),
        "fisher": _fisher(records),
    }


def _digits(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _line(record: Record, devices: int) -> str:
    """The level of every device of the fleet in a round."""
    levels = {device["device"]: device["level"] for device in record["devices"]}
    return line_of_levels(levels.get(device) for device in range(devices))


def _changes(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Each stretch of equal lines: how many rounds it lasts, and the line."""
    return [(len(list(same)), line) for line, same in groupby(lines)]


def _coverage(key: str) -> Callable[[Record], float | None]:
    return lambda record: record["coverage"][key]


def _fisher(records: Sequence[Record]) -> Compact | None:
    """Mean Fisher information of each kind of device, and of all: over the slice trained, and over the unit in it."""
    devices = [device for record in records for device in record["devices"]]
    if not any(device["fisher"] is not None for device in devices):
        return None
    kinds = dict.fromkeys(device["kind"] for device in devices)

    def mean_of(kind: str | None, key: str) -> Callable[[Record], float | None]:
        def value(record: Record) -> float | None:
            known = [d[key] for d in record["devices"] if kind in (None, d["kind"]) and d.get(key) is not None]
            return sum(known) / len(known) if known else None

        return value

    columns = {kind: mean_of(kind, "fisher") for kind in kinds}
    return _binned(records, {**columns, "all": mean_of(None, "fisher"), "unit": mean_of(None, "fisher_unit")}, None)


def _binned(
    records: Sequence[Record], columns: Mapping[str, Callable[[Record], float | None]], digits: int | None
) -> Compact:
    """Means over stretches of rounds, and the last round of each; three significant digits where `digits` is None."""
    parts = [part for part in np.array_split(np.arange(len(records)), min(POINTS, max(1, len(records)))) if len(part)]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        value = sum(known) / len(known)
        return float(f"{value:.3g}") if digits is None else round(value, digits)

    binned: Compact = {"round": [records[part[-1]]["round"] for part in parts]}
    for name, column in columns.items():
        binned[name] = [mean([column(records[i]) for i in part]) for part in parts]
    return binned


def records_of(compact: Compact, metric: str = "accuracy") -> list[Record]:
    """The rounds as the summaries and pictures read them; `metric` is what counts as accuracy."""
    accuracies = compact["accuracy"] if metric == "accuracy" else compact["more"][metric]
    devices = {line: _devices(compact, line) for _, line in compact["levels"]}
    lines = level_lines(compact)
    return [
        {
            "round": number,
            "time_s": compact["time_s"][number - 1],
            "accuracy": accuracies[number - 1],
            "energy_j": compact["energy_j"][number - 1],
            "devices": devices[lines[number - 1]],
        }
        for number in range(1, compact["rounds"] + 1)
    ]


def level_lines(compact: Compact) -> list[str]:
    """The levels of every round, one character a device."""
    return [line for count, line in compact["levels"] for _ in range(count)]


def _devices(compact: Compact, line: str) -> list[dict[str, Any]]:
    devices = []
    for kind, character in zip(compact["kinds"], line, strict=True):
        if character != ABSENT:
            level = int(character, 36)
            share = compact["shares"][str(level)]
            devices.append({"kind": kind, "level": level, "share": share, "bytes_up": round(share * compact["bytes"])})
    return devices


def to_json(compact: Compact) -> str:
    """One line for each key: small, and still readable side by side."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in compact.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
