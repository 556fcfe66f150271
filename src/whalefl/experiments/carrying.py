"""Carry planned runs out: whole runs, several at a time, and none that would not fit into the time there is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whalefl import __version__
from whalefl.config import Experiment
from whalefl.execution import Job, Listener, execute_together, side_by_side, training_key
from whalefl.experiments.cells import Run, settings_of
from whalefl.experiments.plan import Entry, Request, missing
from whalefl.experiments.store import SCHEMA, Store
from whalefl.report.compact import Compact, compact_metrics, level_lines
from whalefl.runs import RunFolder
from whalefl.scheduling.replay import write_levels


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
        batch: list[Work] = []
        for entry in list(waiting):
            experiment = resolved(entry.run, store, place.work) if entry.seconds <= left else None
            if experiment is None:
                continue
            work = Work(entry.run, request.place(experiment), place)
            if not batch or training_key(work.experiment) == training_key(batch[0].experiment):
                waiting.remove(entry)
                batch.append(work)
            if len(batch) == place.together:
                break
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
    jobs = [Job(work.run.name, work.experiment, work.folder, work.place.command) for work in batch]
    results = execute_together(jobs, listener)
    seconds = (time.perf_counter() - start) / len(batch)
    for work, diverged in zip(batch, results, strict=True):
        status, reason = ("finished", None) if diverged is None else ("diverged", str(diverged))
        metrics = compact_metrics(list(RunFolder(work.folder).records()))
        Store(work.place.results).save(work.run, {**_header(work, status, reason, seconds), **metrics})


def _header(work: Work, status: str, reason: str | None, seconds: float) -> Compact:
    experiment, need, source = work.experiment, work.run.need, work.run.source
    on_gpu = experiment.device.startswith("cuda")
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
        "device": "cuda" if on_gpu else "cpu",
        "machine": torch.cuda.get_device_name() if on_gpu else "cpu",
        "side_by_side": work.place.jobs * work.place.together,
        "seconds": round(seconds, 1),
    }
