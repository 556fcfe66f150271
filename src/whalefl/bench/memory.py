"""How much memory a simulation takes beyond the process with its data, for ever more clients.

Beside it stands what torch itself takes for training: a few steps of the whole model in a plain loop, most of it for
activations, gradients, and the scratch memory and code of its convolutions. Every number of clients gets a process of
its own, which imports, makes its data, and waits; from then on its proportional share of memory, summed over it and its
workers, is read from Linux every few milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import sleep

import torch
from torch.nn.functional import cross_entropy

from whalefl.bench.floor import CORES
from whalefl.bench.processes import tree_mb
from whalefl.bench.results import SCHEMA
from whalefl.bench.scenarios import CLASSES, LADDER, random_task
from whalefl.errors import require
from whalefl.federation.engine import Engine, PlainEngine
from whalefl.federation.evaluation import EvaluationSettings
from whalefl.federation.methods import make_method
from whalefl.federation.simulation import Settings, simulate, use_one_thread
from whalefl.federation.training import Training
from whalefl.fleet.devices import KINDS, DeviceGroup, Fleet
from whalefl.runs import write_json
from whalefl.tasks.costs import level_costs
from whalefl.tasks.partition import Partition
from whalefl.tasks.task import Task

CLIENTS = (20, 200, 2000)
COHORT = 20
ROUNDS = 6
EXAMPLES = 60_000
ENGINES = ("plain", "workers", "workers-bf16")
_LOOP = "loop"
_EVERY_S = 0.02
_READY = "ready"


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one run in MB: before it starts, and the most it takes beyond that."""

    clients: int
    cohort: int
    before_mb: float
    beyond_mb: float


@dataclass(frozen=True)
class MemoryResult:
    """Runs with ever more clients, beside the size of what has to be held: a model for each level and worker.

    `loop_mb` is what training the whole model in a plain loop takes, which every worker does too.
    """

    engine: str
    command: str
    rounds: int
    model_mb: float
    loop_mb: float
    levels: int
    workers: int
    rows: tuple[MemoryRow, ...]

    @property
    def models_mb(self) -> float:
        return self.model_mb * (self.levels + self.workers)


def write_memory(path: Path, results: Sequence[MemoryResult]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": SCHEMA, "results": [asdict(result) for result in results]})


def read_memory(path: Path) -> list[MemoryResult]:
    content = json.loads(path.read_text(encoding="utf8"))
    return [
        MemoryResult(**{**entry, "rows": tuple(MemoryRow(**row) for row in entry["rows"])})
        for entry in content["results"]
    ]


def measure_memory(engine: str, clients: tuple[int, ...], rounds: int, command: str) -> MemoryResult:
    """Run a short simulation for each number of clients, one after the other."""
    require(Path("/proc/self/smaps_rollup").exists(), "memory", "off", "measured on Linux")
    parameters = sum(weight.numel() for weight in random_task("mnist", CLASSES).initial_weights(0).values())
    return MemoryResult(
        engine=engine,
        command=command,
        rounds=rounds,
        model_mb=4 * parameters / 1e6,
        loop_mb=_measured(_LOOP, COHORT, rounds).beyond_mb,
        levels=LADDER.levels,
        workers=1 if engine == "plain" else CORES,
        rows=tuple(_measured(engine, number, rounds) for number in clients),
    )


def _measured(engine: str, clients: int, rounds: int) -> MemoryRow:
    command = [sys.executable, "-m", "whalefl.bench.memory", engine, str(clients), str(rounds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            require(child.stdout.readline().strip() == _READY, "the measured process", "gone", "alive")
            before = peak = tree_mb(child.pid)
            child.stdin.write("go\n")
            child.stdin.flush()
            while child.poll() is None:
                peak = max(peak, tree_mb(child.pid))
                sleep(_EVERY_S)
        finally:
            child.kill()
    require(child.returncode == 0, "the measured process's exit code", child.returncode, "0")
    return MemoryRow(clients, min(COHORT, clients), before, peak - before)


def _engine(name: str, task: Task, training: Training) -> Engine:
    if name == "plain":
        return PlainEngine(task, training)
    from whalefl.federation.workers import WorkersEngine

    return WorkersEngine(task, training, workers=CORES, precision="bf16" if name == "workers-bf16" else "fp32")


def plain_steps(task: Task) -> None:
    """The whole model trained on a few mini-batches, as anybody would."""
    model = task.build(task.full).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(10):
        inputs, targets = task.prepare(task.train.inputs[:10]), task.train.targets[:10]
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def simulation_in_child(engine: str, clients: int, rounds: int) -> None:
    """What is measured: a few rounds of HeteroFL with a cohort drawn from all clients, once somebody says so.

    It stops before the last round, the only one after which the model would be evaluated, since evaluating is not the
    engine's.
    """
    use_one_thread()
    task = random_task("mnist", EXAMPLES)
    level_costs(task, LADDER)  # counting FLOPs makes torch import much that it had put off
    print(_READY, flush=True)
    sys.stdin.readline()
    if engine == _LOOP:
        plain_steps(task)
        return
    fleet = Fleet(tuple(DeviceGroup(kind, count=clients // len(KINDS)) for kind in KINDS))
    settings = Settings(
        rounds=rounds + 1,
        clients_per_round=COHORT,
        partition=Partition(kind="iid"),
        training=Training(iterations=10, batch=10),
        evaluation=EvaluationSettings(every=rounds + 1),
    )
    trainer = _engine(engine, task, settings.training)
    try:
        every_round = simulate(task, make_method("heterofl"), fleet, settings=settings, engine=trainer)
        for _ in islice(every_round, rounds):
            pass
    finally:
        trainer.close()


if __name__ == "__main__":
    simulation_in_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
