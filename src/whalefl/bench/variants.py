"""Who competes: the ordinary loop and the engines, each as a function from global weights to global weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import whalefl
from whalefl.bench.floor import CORES
from whalefl.errors import WhaleflError
from whalefl.federation.engine import Engine, PlainEngine
from whalefl.federation.orders import Order
from whalefl.federation.stacks import Precision
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import PartialSums, count_devices
from whalefl.subnet.slicing import Weights
from whalefl.tasks.task import Task

TrainRound = Callable[[Weights, Sequence[Order]], Weights]
"""A round: what is handed out, and the average of what comes back."""

Maker = Callable[[Task, Training], AbstractContextManager[TrainRound]]


@dataclass(frozen=True)
class Variant:
    """A way to train a round, by name; `precision`, and whether it measures Fisher information where an order wants it,
    say which floor it is held against."""

    name: str
    precision: Precision
    make: Maker
    measures: bool = True


class _PlainLoop(Protocol):
    """What benchmarks/plain_loop.py offers."""

    def round(self, weights: Weights, orders: Sequence[Order]) -> Weights: ...


def rounds_by(engine: Engine, task: Task) -> TrainRound:
    """A round by an engine, averaging included."""

    def train_round(weights: Weights, orders: Sequence[Order]) -> Weights:
        sums, _ = engine.train(weights, orders)
        return averaged(task, weights, sums)

    return train_round


def averaged(task: Task, weights: Weights, sums: PartialSums) -> Weights:
    return sums.average(weights, count_devices(task.axes, sums.contributions, task.train.inputs.device))


@contextmanager
def _plain_loop(task: Task, training: Training) -> Iterator[TrainRound]:
    yield _plain_loop_class()(task, training).round


@contextmanager
def _plain_engine(task: Task, training: Training) -> Iterator[TrainRound]:
    yield rounds_by(PlainEngine(task, training), task)


@contextmanager
def _eager(task: Task, training: Training) -> Iterator[TrainRound]:
    """The plain engine with every client by itself."""
    yield rounds_by(PlainEngine(task, training, "tf32", largest=1), task)


@contextmanager
def _workers(task: Task, training: Training, precision: Precision) -> Iterator[TrainRound]:
    from whalefl.federation.workers import WorkersEngine

    engine = WorkersEngine(task, training, workers=CORES, precision=precision)
    try:
        yield rounds_by(engine, task)
    finally:
        engine.close()


@contextmanager
def _graphs(task: Task, training: Training, precision: Precision) -> Iterator[TrainRound]:
    from whalefl.federation.graphs import GraphEngine

    yield rounds_by(GraphEngine(task, training, precision), task)


VARIANTS: dict[str, dict[str, Variant]] = {
    device: {variant.name: variant for variant in variants}
    for device, variants in {
        "cpu": (
            Variant("plain-loop", "fp32", _plain_loop, measures=False),
            Variant("plain", "fp32", _plain_engine),
            Variant("workers", "fp32", partial(_workers, precision="fp32")),
            Variant("workers-bf16", "bf16", partial(_workers, precision="bf16")),
        ),
        "cuda": (
            Variant("eager", "tf32", _eager),
            Variant("graphs", "tf32", partial(_graphs, precision="tf32")),
            Variant("graphs-bf16", "bf16", partial(_graphs, precision="bf16")),
        ),
    }.items()
}
"""device -> name -> variant; the first of those measured is what the others are compared with."""


def _plain_loop_class() -> Callable[[Task, Training], _PlainLoop]:
    """The ordinary loop is no part of the package: it is read from the source tree it is kept in."""
    places = [Path(whalefl.__file__).parents[2], Path.cwd()]
    for place in places:
        path = place / "benchmarks" / "plain_loop.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location("plain_loop", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.PlainLoop  # type: ignore[no-any-return]
    raise WhaleflError(
        "variants has 'plain-loop', whose file benchmarks/plain_loop.py is not in the current folder; "
        "it must be left out, or the command run in a checkout of the sources"
    )
