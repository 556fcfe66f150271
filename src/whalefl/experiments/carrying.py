"""Carry planned runs out: whole runs, several at a time, and none that would not fit into the time there is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import torch

from whalefl import __version__
from whalefl.bench.results import processor_name
from whalefl.config import Experiment
from whalefl.engines import training_key
from whalefl.execution import Job, execute_together
from whalefl.experiments.cells import Run, settings_of
from whalefl.experiments.plan import Entry, Request, missing
from whalefl.experiments.store import SCHEMA, Store
from whalefl.report.compact import Compact, compact_metrics, level_lines
from whalefl.runs import RunFolder
from whalefl.scheduling.replay import write_levels
from whalefl.side_by_side import Listener, side_by_side


@dataclass(frozen=True)
class Place:
    """Where results and run folders go, in how many processes runs are made, how many together in each, how long, and
    what is noted of their origin."""

    results: Path
    work: Path
    jobs: int
    together: int
    time_limit_s: float | None
    command: str
    commit: str


@dataclass(frozen=True)
class Work:
    """One run to carry out, everything it needs resolved."""

    run: Run
    experiment: Experiment
    place: Place

    @property
    def folder(self) -> Path:
        return self.place.work / self.run.experiment.task.replace(":", ".") / self.run.name


def carry_out_all(entries: Sequence[Entry], request: Request, place: Place, listener: Listener) -> Iterator[Run]:
    """Carry out what is not finished yet, in order; yields each run as it ends.

    A run starts when what it needs is there, and when its predicted seconds fit into what is left of the time limit.
    """
    store, waiting = Store(place.results), missing(entries)
    start = time.monotonic()

    def upcoming() -> list[Work] | None:
        """The next run, and the next ones that train like it."""
        left = float("inf") if place.time_limit_s is None else place.time_limit_s - (time.monotonic() - start)
        most = min(place.together, ceil(len(waiting) / place.jobs))  # no process is to be idle
        batch: list[Work] = []
        for entry in list(waiting):
            alike = not batch or training_key(request.place(entry.run.experiment)) == training_key(batch[0].experiment)
            if len(batch) == most or not alike or entry.seconds > left:
                continue
            experiment = resolved(entry.run, store, place.work)
            if experiment is not None:
                waiting.remove(entry)
                left -= entry.seconds  # what is measured of a run is its share of the batch
                batch.append(Work(entry.run, request.place(experiment), place))
        return batch or None

    for batch in side_by_side(carry_out, upcoming, place.jobs, listener):
        for work in batch:
            yield work.run


def resolved(run: Run, store: Store, work: Path) -> Experiment | None:
    """The experiment with what it takes over from another run; None while that one has not given it."""
    source, need = run.source, run.need
    if source is None or need is None:
        return run.experiment
    finished = store.find(source)
    if finished is None or finished.diverged:
        return None
    if need.kind == "threshold":
        threshold = finished.compact["threshold"]
        if threshold is None:
            return None
        whale = replace(run.experiment.whale, threshold=need.factor * threshold)
        return replace(run.experiment, whale=whale)
    path = work / "levels" / f"{source.name}.txt"
    write_levels(path, level_lines(finished.compact))
    return replace(run.experiment, replay=replace(run.experiment.replay, file=str(path)))


def carry_out(batch: Sequence[Work], listener: Listener) -> None:
    """Runs that train alike, from their start whatever an earlier attempt left, and their compact metrics."""
    for work in batch:
        shutil.rmtree(work.folder, ignore_errors=True)
    start = time.perf_counter()
    jobs = [Job(work.run.name, work.experiment, work.folder, work.place.command, resumable=False) for work in batch]
    for number, diverged in execute_together(jobs, listener):
        work, seconds = batch[number], (time.perf_counter() - start) / len(batch)
        status, reason = ("finished", None) if diverged is None else ("diverged", str(diverged))
        kinds = [device.kind for device in work.experiment.fleet.devices]
        metrics = compact_metrics(list(RunFolder(work.folder).records()), kinds)
        header = _header(work, status, reason, seconds, len(batch))
        Store(work.place.results).save(work.run, {**header, **metrics})


def _header(work: Work, status: str, reason: str | None, seconds: float, together: int) -> Compact:
    experiment, need, source = work.experiment, work.run.need, work.run.source
    return {
        "schema": SCHEMA,
        "identity": work.run.identity,
        "task": experiment.task,
        "method": experiment.method,
        "seed": experiment.seed,
        "settings": settings_of(work.run.experiment),
        "need": None if need is None or source is None else [need.kind, need.factor, source.name],
        "status": status,
        "reason": reason,
        "command": work.place.command,
        "commit": work.place.commit,
        "version": __version__,
        "device": experiment.device,
        "machine": torch.cuda.get_device_name() if experiment.device == "cuda" else processor_name(),
        "side_by_side": work.place.jobs * together,
        "seconds": round(seconds, 1),
    }
