"""Carry experiments out: one run into its folder, or several side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from whalefl import __version__
from whalefl.config import Experiment, to_toml
from whalefl.errors import Diverged, WhaleflError
from whalefl.federation.checkpoint import load_state, save_state
from whalefl.federation.engine import Engine, PlainEngine, use_precision
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
from whalefl.federation.workers import WorkersEngine, can_fork, cores
from whalefl.leash import die_with_parent
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
from whalefl.subnet.slicing import Weights
from whalefl.tasks.catalogue import load_task
from whalefl.tasks.task import Task
from whalefl.values import RoundRecord

Reports = SimpleQueue[tuple[str, RoundRecord]]

_LAST_WORDS_S = 5.0
_PATIENCE_S = 2.0  # with another process in a run's folder
_PUT_DOWN_S = 30.0  # so much is lost at most of a run that is killed
_PAUSE_S = 0.05

Listener = Callable[[str, RoundRecord], None]
"""Is told the name of a run and each of its rounds as it ends."""


@dataclass(frozen=True)
class Job:
    """An experiment, the folder it goes to, its name among others, and the command that repeats it."""

    name: str
    experiment: Experiment
    folder: Path
    command: str


def prepared(experiment: Experiment) -> Federation:
    """The federation of an experiment, not yet trained: whatever is wrong with it is said now."""
    return assemble(
        _task(experiment),
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

    folder: RunFolder
    federation: Federation
    state: State
    saved_s: float
    saved_round: int

    @classmethod
    def begin(cls, folder: RunFolder, federation: Federation) -> Underway:
        """From its checkpoint, or from the first round."""
        path = folder.path / CHECKPOINT
        state = load_state(path, federation) if path.exists() else first_state(federation)
        folder.keep_rounds(state.round)
        folder.mark(RUNNING)
        return cls(folder, federation, state, time.monotonic(), state.round)

    @property
    def over(self) -> bool:
        return over(self.federation.settings, self.state)

    def put_down(self) -> None:
        """Keep what it takes to go on from here."""
        if self.state.round > self.saved_round:
            save_state(self.folder.path / CHECKPOINT, self.state)
        self.saved_s, self.saved_round = time.monotonic(), self.state.round

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
    federations = [prepared(job.experiment) for job in jobs]
    engine = _engine_of(jobs[0].experiment, federations[0].task)
    with closing(engine), ExitStack() as held:
        folders = [folder_of(job, federation) for job, federation in zip(jobs, federations, strict=True)]
        for folder in folders:
            held.enter_context(only_one(folder.path, _PATIENCE_S))
        unfinished = {n: Underway.begin(*pair) for n, pair in enumerate(zip(folders, federations, strict=True))}
        status = "failed"
        try:
            for number, diverged in _rounds(unfinished, [job.name for job in jobs], engine, listener):
                unfinished.pop(number).end(diverged)
                yield number, diverged
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            for run in unfinished.values():
                run.put_down()
                run.folder.mark(status)


def _rounds(
    unfinished: Mapping[int, Underway], names: Sequence[str], engine: Engine, listener: Listener
) -> Iterator[tuple[int, Diverged | None]]:
    """All rounds of some runs; yields each run that has come to its end, and how it diverged if it did."""
    runs = dict(unfinished)
    yield from ((number, None) for number, run in runs.items() if run.over)
    going = [number for number, run in runs.items() if not run.over]
    federations, states = [runs[number].federation for number in going], [runs[number].state for number in going]
    for place, finished in rounds_together(federations, engine, states):
        number = going[place]
        if isinstance(finished, Diverged):
            yield number, finished
            continue
        run = runs[number]
        run.folder.append(finished.record)
        run.state = finished.state
        listener(names[number], finished.record)
        if run.over:
            yield number, None
        elif time.monotonic() - run.saved_s > _PUT_DOWN_S:
            run.put_down()


def folder_of(job: Job, federation: Federation) -> RunFolder:
    """A run's folder: the one that was made for it, if it has not ended there, or a new one."""
    folder, config = RunFolder(job.folder), to_toml(job.experiment)
    if (job.folder / RUN).exists() and not folder.ended:
        if (job.folder / CONFIG).read_text(encoding="utf8") != config:
            raise WhaleflError(f"out is {str(job.folder)!r}, which holds another run; name a new folder")
        return folder
    folder = RunFolder.create(job.folder, config, job.command, __version__, federation.task.notes)
    write_json(folder.path / OWNERSHIP, ownership(federation))
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


def make_engine(experiment: Experiment, task: Task) -> Engine:
    """The engine an experiment asks for; `auto` takes the fastest one for its device."""
    use_precision(experiment.precision)
    wanted = experiment.engine
    on_gpu = experiment.device == "cuda"
    if wanted == "auto":
        # A process that was started to run beside others leaves the other cores to them.
        alone = multiprocessing.parent_process() is None
        several = alone and can_fork() and len(cores()) > 1
        wanted = "graphs" if on_gpu else "workers" if several else "plain"
    if wanted == "plain":
        return PlainEngine(task, experiment.training, experiment.precision)
    if wanted == "workers":
        if on_gpu:
            raise WhaleflError("engine is 'workers'; it must be 'plain', 'graphs' or 'auto' where device is 'cuda'")
        return WorkersEngine(task, experiment.training, precision=experiment.precision)
    if not on_gpu:
        raise WhaleflError("engine is 'graphs'; it must be 'plain', 'workers' or 'auto' where device is not 'cuda'")
    from whalefl.federation.graphs import GraphEngine

    return GraphEngine(task, experiment.training, experiment.precision)


_recorded: tuple[object, Engine] | None = None


def _engine_of(experiment: Experiment, task: Task) -> Engine:
    """A new engine; but the steps that a GPU has recorded serve the next run in this process if it trains alike."""
    global _recorded
    if experiment.device != "cuda":
        return make_engine(experiment, task)
    key = training_key(experiment)
    if _recorded is None or _recorded[0] != key:
        _recorded = None
        torch.cuda.empty_cache()  # what was recorded before leaves memory that nothing recorded later could use
        _recorded = (key, make_engine(experiment, task))
    return _recorded[1]


def training_key(experiment: Experiment) -> object:
    """Experiments with the same key train alike: one engine serves them all."""
    return (
        (experiment.task, experiment.data_dir, experiment.norm, experiment.evaluation.on),
        (experiment.device, experiment.engine, experiment.precision),
        replace(experiment.training, lr=1.0),  # the rate comes with every order
    )


def make_folders(jobs: Sequence[Job]) -> None:
    """The folders of some runs; but if anything is wrong with any of these, that is said and there are none."""
    federations = {job.folder: prepared(job.experiment) for job in jobs}
    if len(federations) < len(jobs):
        raise WhaleflError("two of the runs would have the same folder; their values must differ in letters or digits")
    for job in jobs:
        folder_of(job, federations[job.folder])


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


Item = TypeVar("Item")


def in_batches(items: Sequence[Item], key: Callable[[Item], object], most: int) -> list[list[Item]]:
    """Items in batches of one key and of at most so many, in the order in which each batch's first one comes."""
    batches: list[list[Item]] = []
    for item in items:
        open_ones = (batch for batch in batches if len(batch) < most and key(batch[0]) == key(item))
        batch = next(open_ones, None)
        if batch is None:
            batches.append([item])
        else:
            batch.append(item)
    return batches


Work = TypeVar("Work")


def side_by_side(
    work: Callable[[Work, Listener], object], upcoming: Callable[[], Work | None], workers: int, listener: Listener
) -> Iterator[Work]:
    """Carry out what `upcoming` hands out, `workers` at a time in processes of their own; yields each as it ends.

    `upcoming` is asked whenever a place is free. None means that there is nothing to start now: it is asked again when
    something has ended, and all is done when nothing is running either.
    """
    if workers == 1:
        while (one := upcoming()) is not None:
            work(one, listener)
            yield one
        return
    context = multiprocessing.get_context("spawn")
    queue: Reports = context.SimpleQueue()
    running: dict[Future[None], Work] = {}
    with _forwarding(queue, listener), ProcessPoolExecutor(workers, context, _join, (queue,)) as pool:
        try:
            while True:
                while len(running) < workers and (one := upcoming()) is not None:
                    running[pool.submit(_work_here, work, one)] = one
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    yield running.pop(future)
        except BaseException:
            _stop(list(pool._processes.values()), running)
            pool.shutdown(cancel_futures=True)
            raise


def _stop(processes: Sequence[BaseProcess], running: Collection[Future[None]]) -> None:
    """Let workers note that they were interrupted, and then end them, whatever they are doing."""
    for process in processes:
        process.terminate()
    wait(running, timeout=_LAST_WORDS_S)
    for process in processes:
        process.kill()


@contextmanager
def _forwarding(queue: Reports, listener: Listener) -> Iterator[None]:
    """Hand what workers put into the queue to the listener, until the block ends and the queue is empty.

    A listener that fails hears no more, and what it raised is raised at the end: workers must not wait for it. Nothing
    is put into the queue to end it, since a worker that was killed may have left it locked.
    """
    failed: list[BaseException] = []
    ended = Event()

    def forward() -> None:
        while not (ended.wait(_PAUSE_S) and queue.empty()):
            while not queue.empty():
                try:
                    item = queue.get()
                    if not failed:
                        listener(*item)
                except BaseException as error:
                    failed.append(error)

    thread = Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_WORDS_S)
    if failed:
        raise failed[0]


_queue: Reports
_working = False


def _join(queue: Reports) -> None:
    """In a worker process: remember where to report; end with the first process, and when that says so."""
    global _queue
    _queue = queue
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    if _working:
        raise KeyboardInterrupt
    os._exit(0)


def _work_here(work: Callable[[Work, Listener], object], one: Work) -> None:
    global _working
    _working = True
    try:
        work(one, lambda name, record: _queue.put((name, record)))
    finally:
        _working = False
