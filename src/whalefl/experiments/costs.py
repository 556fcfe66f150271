"""How long a run will take on the machine: as long as runs like it took, or what was guessed before there were any."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from whalefl.config import Experiment
from whalefl.federation.methods import check_method

_UNKNOWN_TASK = "mnist"
"""What a task that nobody has measured is taken for."""


@dataclass(frozen=True)
class Costs:
    """Seconds on the machine for each virtual second of a finished run, by (device, task, method)."""

    measured: dict[tuple[str, str, str], float]

    def seconds(self, experiment: Experiment) -> float:
        """The predicted seconds of a run."""
        device, task, method = experiment.device, experiment.task, experiment.method
        virtual_s = experiment.horizon_s or float("inf")
        alike = [rate for (d, t, _), rate in self.measured.items() if (d, t) == (device, task)]
        rate = self.measured.get((device, task, method), mean(alike) if alike else None)
        if rate is not None and virtual_s < float("inf"):
            return rate * virtual_s
        return guessed_seconds(experiment)


def guessed_seconds(experiment: Experiment) -> float:
    """From the committed table: rounds until the horizon, and seconds a round."""
    table = _table()
    machine = table[experiment.device]
    virtual = table["virtual"].get(experiment.task, table["virtual"][_UNKNOWN_TASK])
    policy = check_method(experiment.method)[1]
    round_s = virtual[policy if policy in ("full", "fixed") else "other"]
    rounds = min(experiment.rounds, (experiment.horizon_s or float("inf")) / round_s)
    return float(machine["start"] + rounds * machine.get(experiment.task, machine[_UNKNOWN_TASK]))


def measured_costs(folder: Path) -> Costs:
    """What the runs under a results folder cost."""
    rates: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("runs/*/*.json")):
        compact = json.loads(path.read_text(encoding="utf8"))
        if compact["status"] == "finished" and compact["time_s"]:
            key = (compact["device"], compact["task"], compact["method"])
            rates[key].append(compact["seconds"] / compact["time_s"][-1])
    return Costs({key: mean(values) for key, values in rates.items()})


@cache
def _table() -> dict[str, Any]:
    text = files("whalefl").joinpath("experiments", "costs.toml").read_text(encoding="utf8")
    return tomllib.loads(text)
