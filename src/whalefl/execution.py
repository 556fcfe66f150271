"""Carry experiments out: one run into its folder, or several side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Thread

import torch
from safetensors.torch import save
from torch import Tensor

from whalefl import __version__
from whalefl.config import Experiment, to_toml
from whalefl.errors import WhaleflError
from whalefl.federation.engine import Engine, PlainEngine, use_precision
from whalefl.federation.ownership import ownership
from whalefl.federation.rounds import Federation
from whalefl.federation.serving import serve_levels
from whalefl.federation.simulation import assemble, federation_calibration, rounds_of, use_one_thread
from whalefl.runs import LEVELS, MODEL, OWNERSHIP, STATISTICS, RunFolder, write_atomic, write_json
from whalefl.subnet.slicing import Weights
from whalefl.tasks.catalogue import load_task
from whalefl.tasks.task import Task
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
    if not (experiment.device == "cpu" or (experiment.device.startswith("cuda") and torch.cuda.is_available())):
        raise WhaleflError(f"device is {experiment.device!r}; it must be 'cpu', or 'cuda' where there is a GPU")
    data_dir = None if experiment.data_dir is None else Path(experiment.data_dir)
    return load_task(experiment.task, data_dir, experiment.norm).to(experiment.device)


def execute(job: Job, listener: Listener) -> RunFolder:
    """Run one experiment and leave its folder."""
    use_one_thread()
    federation = prepared(job.experiment)
    engine = make_engine(job.experiment, federation.task)
    folder = RunFolder.create(job.folder, to_toml(job.experiment), job.command, __version__, federation.task.notes)
    status = "failed"
    try:
        write_json(folder.path / OWNERSHIP, ownership(federation))
        for finished in rounds_of(federation, job.experiment, engine):
            folder.append(finished.record)
            listener(job.name, finished.record)
        _write_model(folder, federation, job.experiment, finished.state.weights)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        folder.finish(status)
    return folder


def _write_model(folder: RunFolder, federation: Federation, experiment: Experiment, weights: Weights) -> None:
    """The final model, and what it does at each of its sizes."""
    write_atomic(folder.path / MODEL, save(_for_disk(weights)))
    calibration = federation_calibration(federation, experiment)
    nested = federation.method.extraction.nested
    served, statistics = serve_levels(federation.task, experiment.ladder, nested, weights, calibration)
    write_atomic(folder.path / STATISTICS, save(_for_disk(statistics)))
    write_json(folder.path / LEVELS, [asdict(level) for level in served])


def _for_disk(tensors: Weights) -> dict[str, Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def make_engine(experiment: Experiment, task: Task) -> Engine:
    """The engine an experiment asks for; `auto` takes the fastest one for its device."""
    use_precision(experiment.precision)
    wanted = experiment.engine
    if wanted == "auto":
        wanted = "graphs" if experiment.device.startswith("cuda") else "plain"
    if wanted == "plain":
        if experiment.precision == "bf16":
            raise WhaleflError("precision is 'bf16'; it must be 'fp32' or 'tf32' with the plain engine")
        return PlainEngine(task, experiment.training)
    if not experiment.device.startswith("cuda"):
        raise WhaleflError("engine is 'graphs'; it must be 'plain' or 'auto' where device is not 'cuda'")
    from whalefl.federation.graphs import GraphEngine

    return GraphEngine(task, experiment.training, experiment.precision)


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
