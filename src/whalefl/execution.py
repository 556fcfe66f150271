"""Carry experiments out: one run into its folder, several on one engine, or many side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from whalefl import __version__
from whalefl.config import Experiment, to_toml
from whalefl.engines import engine_of, training_key
from whalefl.errors import Diverged, WhaleflError, require
from whalefl.federation.checkpoint import load_state, save_state
from whalefl.federation.engine import Engine
from whalefl.federation.ownership import ownership
from whalefl.federation.rounds import Federation, State
from whalefl.federation.serving import serve_levels
from whalefl.federation.simulation import (
    assemble,
    federation_calibration,
    first_state,
    over,
    rounds_together,
    use_one_thread,
)
from whalefl.heap import keep_freed_memory
from whalefl.lock import only_one
from whalefl.runs import (
    CHECKPOINT,
    CONFIG,
    DIVERGED,
    FINISHED,
    LEVELS,
    MODEL,
    OWNERSHIP,
    RUN,
    RUNNING,
    STATISTICS,
    RunFolder,
    write_atomic,
    write_json,
)
from whalefl.side_by_side import Listener, in_batches, side_by_side
from whalefl.subnet.slicing import Weights
from whalefl.tasks.catalogue import load_task
from whalefl.tasks.task import Task

_PATIENCE_S = 2.0  # with another process in a run's folder
_PUT_DOWN_S = 30.0  # so much is lost at most of a run that is killed


@dataclass(frozen=True)
class Job:
    """An experiment, the folder it goes to, its name among others, and the command that repeats it.

    A `resumable` one puts its state down now and then, and goes on from there if it was interrupted.
    """

    name: str
    experiment: Experiment
    folder: Path
    command: str
    resumable: bool = True


def prepared(experiment: Experiment, task: Task | None = None) -> Federation:
    """The federation of an experiment, not yet trained: whatever is wrong with it is said now. Its task is loaded if it
    is not given."""
    return assemble(
        task or _task(experiment),
        experiment.make_method(),
        experiment.fleet,
        experiment.weather,
        experiment,
        experiment.all_seeds(),
    )


def _task(experiment: Experiment) -> Task:
    check_device(experiment.device)
    data_dir = None if experiment.data_dir is None else Path(experiment.data_dir)
    return load_task(experiment.task, data_dir, experiment.norm).to(experiment.device)


def check_device(device: str) -> None:
    """Say so where there is no such device."""
    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise WhaleflError(f"device is {device!r}; it must be 'cpu', or 'cuda' where there is a GPU")


def execute(job: Job, listener: Listener) -> RunFolder:
    """Run one experiment and leave its folder."""
    for _, diverged in execute_together([job], listener):
        if diverged is not None:
            raise diverged
    return RunFolder(job.folder)


@dataclass(eq=False)
class Underway:
    """A run on its way: its state after the last round that ended, and when that was last put down, and after which
    round."""

    job: Job
    folder: RunFolder
    federation: Federation
    state: State
    saved_s: float
    saved_round: int

    @classmethod
    def begin(cls, job: Job, folder: RunFolder, federation: Federation) -> Underway:
        """From its checkpoint, if the rounds before it are all recorded, or else from the first round."""
        path = folder.path / CHECKPOINT
        for half_written in folder.path.glob(f".{CHECKPOINT}.*"):
            half_written.unlink()
        state = load_state(path, federation) if path.exists() else first_state(federation)
        if folder.keep_rounds(state.round) != state.round:
            path.unlink()
            state = first_state(federation)
            folder.keep_rounds(state.round)
        folder.mark(RUNNING)
        return cls(job, folder, federation, state, time.monotonic(), state.round)

    @property
    def over(self) -> bool:
        return over(self.federation.settings, self.state)

    def put_down(self) -> None:
        """Keep what it takes to go on from here."""
        if self.job.resumable and self.state.round > self.saved_round:
            self.folder.settle()
            save_state(self.folder.path / CHECKPOINT, self.state)
        self.saved_s, self.saved_round = time.monotonic(), self.state.round

    def stop(self, status: str) -> None:
        """Leave a run that has not ended."""
        try:
            self.put_down()
        finally:
            self.folder.mark(status)

    def end(self, diverged: Diverged | None = None) -> None:
        """Leave what is left of a run that has ended."""
        if diverged is None:
            write_model(self.folder, self.state.weights)
            write_served(self.folder, self.federation, self.state.weights)
            self.folder.mark(FINISHED)
        else:
            self.folder.mark(DIVERGED, str(diverged))
        (self.folder.path / CHECKPOINT).unlink(missing_ok=True)


def execute_together(jobs: Sequence[Job], listener: Listener) -> Iterator[tuple[int, Diverged | None]]:
    """Run experiments that train alike on one engine, round by round, each into its folder.

    Yields the number of each when it has ended, and how it diverged if it did, which does not touch the others. A run
    that was interrupted goes on from its checkpoint.
    """
    use_one_thread()
    keep_freed_memory()
    task = _task(jobs[0].experiment)  # those that train alike have one
    federations = [prepared(job.experiment, task) for job in jobs]
    engine = engine_of(jobs[0].experiment, federations[0].task)
    with closing(engine), ExitStack() as held:
        folders = [folder_of(job, *_told(federation)) for job, federation in zip(jobs, federations, strict=True)]
        for folder in folders:
            held.enter_context(only_one(folder.path, _PATIENCE_S))
            require(not folder.ended, "out", str(folder.path), "a folder whose run has not ended")
        unfinished: dict[int, Underway] = {}
        status = "failed"
        try:
            unfinished.update(enumerate(map(Underway.begin, jobs, folders, federations)))
            for number, diverged in _rounds(unfinished, engine, listener):
                unfinished[number].end(diverged)
                del unfinished[number]
                yield number, diverged
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            with ExitStack() as stopping:  # each of them, whatever becomes of the others
                for run in unfinished.values():
                    stopping.callback(run.stop, status)


def _rounds(
    unfinished: Mapping[int, Underway], engine: Engine, listener: Listener
) -> Iterator[tuple[int, Diverged | None]]:
    """All rounds of some runs; yields each run that has come to its end, after which it must be gone from them, and how
    it diverged if it did."""
    yield from [(number, None) for number, run in unfinished.items() if run.over]
    going = list(unfinished)
    states = (unfinished[number].state for number in going)
    for place, finished in rounds_together([unfinished[number].federation for number in going], engine, states):
        number = going[place]
        if isinstance(finished, Diverged):
            yield number, finished
            continue
        run = unfinished[number]
        run.folder.append(finished.record)
        run.state = finished.state
        listener(run.job.name, finished.record)
        if run.over:
            yield number, None
        elif time.monotonic() - run.saved_s > _PUT_DOWN_S:
            run.put_down()


def folder_of(job: Job, notes: Sequence[str], owned: object) -> RunFolder:
    """A run's folder: the one that was made for it, if it has not ended there, or a new one."""
    folder, config = RunFolder(job.folder), to_toml(job.experiment)
    if (job.folder / RUN).exists() and not folder.ended:
        if (job.folder / CONFIG).read_text(encoding="utf8") != config:
            raise WhaleflError(f"out is {str(job.folder)!r}, which holds another run; name a new folder")
        return folder
    folder = RunFolder.create(job.folder, config, job.command, __version__, notes)
    write_json(folder.path / OWNERSHIP, owned)
    return folder


def write_model(folder: RunFolder, weights: Weights) -> None:
    """The final model."""
    write_atomic(folder.path / MODEL, save(_for_disk(weights)))


def write_served(folder: RunFolder, federation: Federation, weights: Weights) -> None:
    """What the final model does at each of its sizes."""
    calibration, ladder = federation_calibration(federation), federation.settings.ladder
    nested = federation.method.extraction.nested
    served, statistics = serve_levels(federation.task, ladder, nested, weights, calibration)
    write_atomic(folder.path / STATISTICS, save(_for_disk(statistics)))
    write_json(folder.path / LEVELS, [asdict(level) for level in served])


def _for_disk(tensors: Weights) -> dict[str, Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def make_folders(jobs: Sequence[Job]) -> None:
    """The folders of some runs; but if anything is wrong with any of these, that is said and there are none."""
    if len({job.folder for job in jobs}) < len(jobs):
        raise WhaleflError("two of the runs would have the same folder; their values must differ in letters or digits")
    told = [_told(prepared(job.experiment)) for job in jobs]  # one federation at a time is in memory
    for job, (notes, owned) in zip(jobs, told, strict=True):
        folder_of(job, notes, owned)


def _told(federation: Federation) -> tuple[tuple[str, ...], object]:
    """What a run's folder says of its data from the beginning."""
    return federation.task.notes, ownership(federation)


def execute_all(jobs: Sequence[Job], workers: int, listener: Listener, together: int = 1) -> list[RunFolder]:
    """Run several experiments, in `workers` processes, each `together` at a time; every run is as if it ran alone (on a
    GPU up to rounding, and to dropout). One that diverges says so in its folder, and the others go on."""
    if not jobs:
        return []
    most = min(together, ceil(len(jobs) / workers))  # no process is to be idle
    batches = in_batches(jobs, lambda job: training_key(job.experiment), most)
    upcoming = iter(batches)
    for _ in side_by_side(_execute_batch, lambda: next(upcoming, None), min(workers, len(batches)), listener):
        pass
    return [RunFolder(job.folder) for job in jobs]


def _execute_batch(jobs: Sequence[Job], listener: Listener) -> None:
    for _ in execute_together(jobs, listener):
        pass
