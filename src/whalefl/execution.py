"""Carry experiments out: one run into its folder, or several side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Thread

from safetensors.torch import save

from whalefl import __version__
from whalefl.config import Experiment, to_toml
from whalefl.federation.simulation import Round, simulate, use_one_thread
from whalefl.runs import MODEL, RunFolder, write_atomic
from whalefl.tasks.catalogue import load_task
from whalefl.values import RoundRecord

Listener = Callable[[str, RoundRecord], None]
"""Is told the name of a run and each of its rounds as it ends."""


@dataclass(frozen=True)
class Job:
    """An experiment, the folder it goes to, its name among others, and the command that repeats it."""

    name: str
    experiment: Experiment
    folder: Path
    command: str


def prepared(experiment: Experiment) -> Iterator[Round]:
    """The rounds of an experiment, not yet begun: whatever is wrong with it is said now."""
    return simulate(
        load_task(experiment.task),
        experiment.make_method(),
        experiment.fleet,
        experiment.weather,
        experiment,
        experiment.all_seeds(),
    )


def execute(job: Job, listener: Listener) -> RunFolder:
    """Run one experiment and leave its folder."""
    use_one_thread()
    rounds = prepared(job.experiment)
    folder = RunFolder.create(job.folder, to_toml(job.experiment), job.command, __version__)
    status = "failed"
    try:
        for finished in rounds:
            folder.append(finished.record)
            listener(job.name, finished.record)
        weights = {name: tensor.contiguous() for name, tensor in finished.state.weights.items()}
        write_atomic(folder.path / MODEL, save(weights))
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        folder.finish(status)
    return folder


def execute_all(jobs: Sequence[Job], workers: int, listener: Listener) -> list[RunFolder]:
    """Run several experiments, `workers` at a time; every run is the same as if it ran alone."""
    for job in jobs:
        prepared(job.experiment)
    if workers == 1 or len(jobs) == 1:
        return [execute(job, listener) for job in jobs]
    context = multiprocessing.get_context("spawn")
    queue: SimpleQueue[tuple[str, RoundRecord] | None] = context.SimpleQueue()
    with (
        _forwarding(queue, listener),
        ProcessPoolExecutor(min(workers, len(jobs)), context, _join, (queue,)) as pool,
    ):
        futures = [pool.submit(_execute_here, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [RunFolder(job.folder) for job in jobs]


@contextmanager
def _forwarding(queue: SimpleQueue[tuple[str, RoundRecord] | None], listener: Listener) -> Iterator[None]:
    """Hand what workers put into the queue to the listener, until the block ends."""

    def forward() -> None:
        while (item := queue.get()) is not None:
            listener(*item)

    thread = Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        queue.put(None)
        thread.join()


_queue: SimpleQueue[tuple[str, RoundRecord] | None]


def _join(queue: SimpleQueue[tuple[str, RoundRecord] | None]) -> None:
    """In a worker process: remember where to report."""
    global _queue
    _queue = queue


def _execute_here(job: Job) -> None:
    execute(job, lambda name, record: _queue.put((name, record)))
