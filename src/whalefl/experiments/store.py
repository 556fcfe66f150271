"""The results folder: one small file for each finished run, found again by what the run is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from whalefl.experiments.cells import Cell, Run, run_of
from whalefl.report.compact import Compact, records_of, to_json
from whalefl.report.summary import Record, RunSummary, summarise
from whalefl.runs import write_atomic

SCHEMA = 1


@lru_cache(maxsize=2048)
def _read(path: Path, changed_ns: int) -> Compact:
    """A file's content, remembered until it changes: many tables read the same runs."""
    compact: Compact = json.loads(path.read_text(encoding="utf8"))
    return compact


@dataclass(frozen=True)
class Finished:
    """A run as its compact metrics tell it."""

    run: Run
    compact: Compact

    def records(self, metric: str = "accuracy") -> list[Record]:
        return records_of(self.compact, metric)

    def summary(self, target: float | None, metric: str = "accuracy") -> RunSummary:
        return summarise(self.records(metric), target)

    @property
    def diverged(self) -> bool:
        return bool(self.compact["status"] != "finished")

    @property
    def usable(self) -> bool:
        """Whether there is anything to show: a run that broke off in its first round left no record."""
        return bool(self.compact["rounds"])


@dataclass(frozen=True)
class Store:
    """The compact metrics under `folder`/runs, by task."""

    folder: Path

    def path(self, run: Run) -> Path:
        return self.folder / "runs" / run.experiment.task.replace(":", ".") / f"{run.name}.json"

    def find(self, run: Run) -> Finished | None:
        """The run if it is finished; a run that is not has no file."""
        path = self.path(run)
        if not path.exists():
            return None
        return Finished(run, _read(path, path.stat().st_mtime_ns))

    def ended(self, cell: Cell) -> dict[int, Finished]:
        """The runs of a cell that have ended, by seed."""
        found = {seed: self.find(run_of(cell, seed)) for seed in cell.all_seeds}
        return {seed: run for seed, run in found.items() if run is not None}

    def runs(self, cell: Cell) -> dict[int, Finished]:
        """Those of them that have something to show."""
        return {seed: run for seed, run in self.ended(cell).items() if run.usable}

    def save(self, run: Run, compact: Compact) -> None:
        path = self.path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_json(compact).encode())
