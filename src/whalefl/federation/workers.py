"""One single-threaded worker process for each core: the engine for processors.

Small steps gain little from several threads, so each core trains stacks of its own. The workers are forked, so the
task's data is there without being copied; the global model lies in memory that all share, and so does each worker's
sum of slices. Only orders and outcomes travel, and which worker carries out what follows from the known cost of each
stack, longest first. The model is scored piece by piece on all cores too.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whalefl.errors import WhaleflError, require
from whalefl.federation.engine import PlainEngine
from whalefl.federation.evaluation import (
    Moments,
    Score,
    Totals,
    batch_norms,
    calibration_inputs,
    calibration_pieces,
    count,
    load_weights,
    observed_moments,
    pooled,
    score_of,
    scored_pieces,
    settle,
)
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.stacks import Precision, arrange, get_ready
from whalefl.federation.training import Training
from whalefl.heap import keep_freed_memory
from whalefl.subnet.aggregation import PartialSums, split_flat
from whalefl.subnet.slicing import Weights
from whalefl.tasks.costs import level_cost
from whalefl.tasks.task import Task

_STARTING_FLOPS = 2e8  # what a core could compute in the time that it takes to start the operations of one step
_GROUPED: dict[Precision, float] = {"fp32": 1.25, "tf32": 1.25, "bf16": 2.0}
"""How much longer the same FLOPs take in grouped convolutions, which are always in float32."""

Group = Sequence[Order]
Errand = tuple[Any, ...]
"""What a worker is to do: the name of one of its errands, and what it needs for it."""


def cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def can_fork() -> bool:
    """Whether workers can be forked here: after a backward pass torch forbids it where there is a GPU."""
    return sys.platform == "linux" and not torch.cuda.is_available()


def share_out(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Who does what: the longest first, each to the worker that has least to do so far."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for item in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        shares[least].append(item)
        loads[least] += costs[item]
    return shares


def _shared(size: int, dtype: torch.dtype) -> Tensor:
    """Memory that forked processes share, all 0; pages that nobody touches are never allocated."""
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype)


class WorkersEngine:
    """Trains a round on several cores. A run comes out bit for bit as with one. Close it when done."""

    def __init__(
        self, task: Task, training: Training, workers: int | None = None, precision: Precision = "fp32"
    ) -> None:
        if not can_fork():
            raise WhaleflError("engine is 'workers'; it must be 'plain' or 'auto' beside a GPU or without Linux")
        places = cores()
        workers = len(places) if workers is None else workers
        require(workers >= 1, "workers", workers, "at least 1")
        self.task, self._precision = task, precision
        self._flops: dict[float, float] = {}
        self._weights = _shared(task.axes.count, torch.float32)
        self._sums = [_shared(task.axes.count, torch.float64) for _ in range(workers)]
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        get_ready(task.train.inputs.device)
        try:
            for number, sums in enumerate(self._sums):
                engine = PlainEngine(task, training, precision)
                self._hire(_Worker(engine, self._weights, sums, places[number % len(places)]))
        except BaseException:
            self._dismiss()
            raise

    def _hire(self, worker: _Worker) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=worker.serve, args=(there, [*self._pipes, here]), daemon=True)
        with warnings.catch_warnings():
            # Python warns of forks beside threads, whose locks would stay locked; a worker takes none of those.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self._pipes.append(here)
        self._processes.append(process)

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        self._hand_out(weights)
        groups = arrange(self.task, orders)
        shares = share_out([self._cost(group) for group in groups], len(self._pipes))
        errands = {number: ("train", [groups[item] for item in share]) for number, share in enumerate(shares) if share}
        answers = self._asked(errands)
        first, *others = sorted(answers)
        sums = PartialSums(self.task.axes, flat=self._sums[first])
        for number in others:
            sums.flat += self._sums[number]
        sums.contributions = [order.contribution for group in groups for order in group]
        return sums, [outcome for answer in answers.values() for outcome in answer]

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        """Piece by piece on all cores, and summed in the order of the pieces: as one process would."""
        self._hand_out(weights)
        self._asked({number: ("load",) for number in range(len(self._pipes))})
        moments = pooled(self._spread("observe", calibration_pieces(self.task, calibration), calibration))
        return score_of(self.task, self._spread("count", scored_pieces(self.task), moments))

    def _hand_out(self, weights: Weights) -> None:
        """Let all workers see these weights."""
        require(bool(self._pipes), "engine", "workers", "open: this one was closed")
        for name, shared in split_flat(self.task.axes, self._weights).items():
            shared.copy_(weights[name])

    def _spread(self, what: str, pieces: Sequence[slice], given: object) -> list[Any]:
        """What the workers make of the pieces, dealt out among them, in the order of the pieces."""
        workers = min(len(self._pipes), len(pieces))
        answers = self._asked({number: (what, given, pieces[number::workers]) for number in range(workers)})
        return [answers[place % workers][place // workers] for place in range(len(pieces))]

    def _cost(self, group: Group) -> float:
        """FLOPs of a stack's work, and of what could be computed while its operations are started."""
        width, (batches, batch) = group[0].width, group[0].batches.shape
        if width not in self._flops:
            self._flops[width] = level_cost(self.task, group[0].level, width).flops
        slower = _GROUPED[self._precision] if len(group) > 1 else 1.0
        flops = batch * self._flops[width] * len(group) * slower
        return float(batches * (flops + _STARTING_FLOPS))

    def _asked(self, errands: Mapping[int, Errand]) -> dict[int, Any]:
        """Send workers on errands and wait for their answers; one that died ends the work of all."""
        try:
            for number, errand in errands.items():
                try:
                    _send(self._pipes[number], errand)
                except OSError:
                    raise self._dead(number) from None
            answers = self._answers(errands)
        except BaseException:
            self._dismiss()  # what they are doing would be taken for the next answer
            raise
        for answer in answers.values():
            if isinstance(answer, Exception):  # all of them are idle again, and can go on with something else
                raise answer
        return answers

    def _answers(self, busy: Iterable[int]) -> dict[int, Any]:
        answers = {}
        waiting = {number: self._pipes[number] for number in busy}
        while waiting:
            ready = wait([*waiting.values(), *(self._processes[number].sentinel for number in waiting)])
            for number, pipe in list(waiting.items()):
                if pipe in ready or pipe.poll():
                    answers[number] = self._receive(number, pipe)
                    del waiting[number]
                elif self._processes[number].sentinel in ready:
                    raise self._dead(number)
        return answers

    def _receive(self, number: int, pipe: Connection) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            raise self._dead(number) from None

    def _dead(self, number: int) -> WhaleflError:
        """What to say of a worker that is gone."""
        process = self._processes[number]
        process.join(timeout=5)
        return WhaleflError(
            f"worker {number} died with exit code {process.exitcode}; "
            "if memory was short, fewer workers or a smaller batch need less"
        )

    def close(self) -> None:
        """Send the workers home; they are idle between rounds."""
        for pipe in self._pipes:
            with suppress(OSError):
                _send(pipe, None)
        for process in self._processes:
            process.join(timeout=1)
        self._dismiss()

    def _dismiss(self) -> None:
        """End all workers, whatever they are doing."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def __enter__(self) -> WorkersEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _send(pipe: Connection, message: object) -> None:
    """By plain pickling: torch's own way would open shared memory for every small tensor."""
    pipe.send_bytes(pickle.dumps(message))


def _telling(error: Exception) -> Exception:
    """The error as it can travel, with a note of where in the worker it arose."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(str(error))
    if not isinstance(error, WhaleflError):
        error.add_note(f"In a worker process:\n{where}")
    return error


class _Worker:
    """A worker's side: it runs the errands it is sent, until it is sent None or its employer is gone."""

    def __init__(self, engine: PlainEngine, weights: Tensor, sums: Tensor, core: int) -> None:
        self.engine, self.sums, self.core = engine, sums, core
        self.weights = split_flat(engine.task.axes, weights)

    def serve(self, pipe: Connection, foreign: Sequence[Connection]) -> None:
        for connection in foreign:  # as long as anybody holds them, nobody notices that their owner is gone
            connection.close()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self.core})
        torch.set_num_threads(1)
        keep_freed_memory()
        gc.freeze()  # collecting what the parent left would look at, and so copy, all of its objects
        with suppress(EOFError, OSError, KeyboardInterrupt):
            while (errand := pipe.recv()) is not None:
                _send(pipe, self._run(*errand))

    def _run(self, what: str, *given: Any) -> Any:
        errands: dict[str, Callable[..., Any]] = {
            "train": self.train,
            "load": self.load,
            "observe": self.observe,
            "count": self.count,
        }
        try:
            return errands[what](*given)
        except Exception as error:
            return _telling(error)

    def train(self, groups: Sequence[Group]) -> list[Outcome]:
        """Train these groups of orders; their slices are in the shared sums afterwards."""
        self.sums.zero_()
        sums = PartialSums(self.engine.task.axes, flat=self.sums)
        return self.engine.train_groups(self.weights, groups, sums)

    def load(self) -> None:
        """Get the whole model ready to be evaluated."""
        load_weights(self.engine.whole, self.weights)

    def observe(self, calibration: NDArray[np.int64], pieces: Sequence[slice]) -> list[dict[str, Moments]]:
        """What the batch norms of the whole model see of some training samples, piece by piece."""
        task, model = self.engine.task, self.engine.whole
        if not batch_norms(model):
            return [{} for _ in pieces]
        return [observed_moments(model, calibration_inputs(task, calibration, piece)) for piece in pieces]

    def count(self, moments: Mapping[str, Moments], pieces: Sequence[slice]) -> list[Totals]:
        """What the whole model makes of some test examples, piece by piece."""
        settle(self.engine.whole, moments)
        return [count(self.engine.task, self.engine.whole, piece) for piece in pieces]
