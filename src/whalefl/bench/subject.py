"""The process whose memory is measured: it imports, makes its data, and goes on whenever it is told to.

Before every stop it says so in a line, so that somebody else can look at it in peace; a line at the end says what it
met. `python -m whalefl.bench.subject ENGINE CLIENTS ROUNDS`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from whalefl.bench.floor import CORES
from whalefl.bench.scenarios import LADDER, random_task
from whalefl.errors import require
from whalefl.federation.engine import Engine, PlainEngine
from whalefl.federation.evaluation import EvaluationSettings, Score
from whalefl.federation.methods import make_method
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import simulate, use_one_thread
from whalefl.federation.stacks import Key, arrange, stack_key
from whalefl.federation.training import Training
from whalefl.fleet.devices import KINDS, DeviceGroup, Fleet
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights
from whalefl.tasks.costs import level_costs
from whalefl.tasks.partition import Partition
from whalefl.tasks.task import Task

COHORT = 20
BATCH = 10
EXAMPLES = 60_000
ENGINES = ("plain", "workers", "workers-bf16")
LOOP, FORKED_LOOP = "loop", "forked-loop"
_STEPS = 50
READY, ASSEMBLED, SHAPES = "ready", "assembled", "shapes"


def stops(engine: str) -> tuple[str, ...]:
    """Where a run with an engine, or of a loop, stops."""
    return (READY, ASSEMBLED) if engine in ENGINES else (READY,)


def stop(name: str) -> None:
    """Say where one is, and wait to be told to go on."""
    print(name, flush=True)
    sys.stdin.readline()


class Watched:
    """An engine, and the shapes of the stacks that it has trained."""

    def __init__(self, engine: Engine, task: Task) -> None:
        self.engine, self.task = engine, task
        self.shapes: set[Key] = set()

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        self.shapes |= {(*stack_key(group[0]), len(group)) for group in arrange(self.task, orders)}
        return self.engine.train(weights, orders)

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        return self.engine.evaluate(weights, calibration)

    def close(self) -> None:
        self.engine.close()


def bare_engine(name: str, task: Task, training: Training) -> Engine:
    if name == "plain":
        return PlainEngine(task, training)
    from whalefl.federation.workers import WorkersEngine

    return WorkersEngine(task, training, workers=CORES, precision="bf16" if name == "workers-bf16" else "fp32")


def plain_steps(task: Task) -> None:
    """The whole model trained on a few mini-batches, as anybody would."""
    model = task.build(task.full).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(_STEPS):
        inputs, targets = task.prepare(task.train.inputs[:BATCH]), task.train.targets[:BATCH]
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def forked_steps(task: Task) -> None:
    """The same in a forked process, which shares all memory until it is written to."""
    child = os.fork()
    if child == 0:
        plain_steps(task)
        os._exit(0)
    require(os.waitpid(child, 0)[1] == 0, "the forked process", "gone", "alive")


def some_rounds(engine: str, task: Task, clients: int, rounds: int) -> None:
    """A few rounds of HeteroFL with a cohort drawn from all clients.

    It ends before the last round, the only one after which the model would be evaluated, since evaluating is not the
    engine's.
    """
    fleet = Fleet(tuple(DeviceGroup(kind, count=clients // len(KINDS)) for kind in KINDS))
    settings = Settings(
        rounds=rounds + 1,
        clients_per_round=COHORT,
        partition=Partition(kind="iid"),
        training=Training(iterations=10, batch=BATCH),
        evaluation=EvaluationSettings(every=rounds + 1),
    )
    trainer = Watched(bare_engine(engine, task, settings.training), task)
    try:
        every_round = simulate(task, make_method("heterofl"), fleet, settings=settings, engine=trainer)
        stop(ASSEMBLED)
        for _ in islice(every_round, rounds):
            pass
    finally:
        trainer.close()
    print(SHAPES, len(trainer.shapes), flush=True)


def main(engine: str, clients: int, rounds: int) -> None:
    use_one_thread()
    task = random_task("mnist", EXAMPLES)
    level_costs(task, LADDER)  # counting FLOPs makes torch import much that it had put off
    stop(READY)
    if engine == LOOP:
        plain_steps(task)
    elif engine == FORKED_LOOP:
        forked_steps(task)
    else:
        some_rounds(engine, task, clients, rounds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
