"""A comparison as its folder remembers it: which runs belong to it, ended or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whalefl.cli.endings import end_comparison
from whalefl.config import Experiment, compose, read_toml
from whalefl.runs import COMPARISON, CONFIG, RunFolder, read_json, write_json


@dataclass(frozen=True)
class Comparison:
    """The command that repeats it, and the folder of each run inside its own, by label and seed."""

    folder: Path
    command: str
    places: Mapping[tuple[str, int], str]

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        content: dict[str, Any] = read_json(folder / COMPARISON)
        return cls(folder, content["command"], {(r["label"], r["seed"]): r["folder"] for r in content["runs"]})

    def write(self) -> None:
        runs = [{"label": label, "seed": seed, "folder": place} for (label, seed), place in self.places.items()]
        write_json(self.folder / COMPARISON, {"command": self.command, "runs": runs})

    @property
    def runs(self) -> dict[str, dict[int, RunFolder]]:
        found: dict[str, dict[int, RunFolder]] = {}
        for (label, seed), place in self.places.items():
            found.setdefault(label, {})[seed] = RunFolder(self.folder / place)
        return found

    def show(self) -> None:
        """Its report; the target is that of its first run."""
        first = experiment_in(self.folder / next(iter(self.places.values())))
        end_comparison(self.folder, self.runs, first.target, self.command)


def experiment_in(folder: Path) -> Experiment:
    """The experiment that a run's folder holds."""
    return compose([read_toml(folder / CONFIG)])
