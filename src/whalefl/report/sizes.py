"""The trained model at each of its sizes, as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import mean
from typing import Any

from whalefl.markdown import grid
from whalefl.runs import LEVELS, RunFolder


def sizes_markdown(runs: Mapping[str, Mapping[int, RunFolder]]) -> str:
    """Accuracy at every level, mean over seeds; empty where no run says anything about it."""
    served = {label: [_levels(run) for run in by_seed.values()] for label, by_seed in runs.items()}
    known = {label: [levels for levels in seeds if levels] for label, seeds in served.items()}
    known = {label: seeds for label, seeds in known.items() if seeds}
    if not known:
        return ""
    first = next(iter(known.values()))[0]
    header = ["accuracy of the slice at", *(f"level {level['level']} ({level['parameters']:,})" for level in first)]
    rows = [header]
    for label, seeds in known.items():
        mark = "" if seeds[0][0]["nested"] else " *"
        accuracies = [mean(levels[i]["accuracy"] for levels in seeds) for i in range(len(seeds[0]))]
        rows.append([label + mark, *(f"{100 * accuracy:.1f} %" for accuracy in accuracies)])
    table = grid(rows)
    if any(row[0].endswith(" *") for row in rows):
        table += "\n\\* not trained as nested slices: below level 1 this is a slice that no device ever trained.\n"
    return table + "\nIn brackets: parameters. Each slice has batch-norm statistics of its own.\n"


def _levels(run: RunFolder) -> list[dict[str, Any]]:
    path = run.path / LEVELS
    levels: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf8")) if path.exists() else []
    return levels
