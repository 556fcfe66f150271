"""How much memory a simulation takes beyond the process with its data, for ever more clients, and what for.

Beside it stands what torch itself takes for training: a few steps of the whole model in a plain loop, in the median of
several. Every loop and every number of clients gets a process of its own (see `whalefl.bench.subject`), which imports,
makes its data, and waits; from then on its proportional share of memory, summed over it and its workers, is read from
Linux every few milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import sleep

import torch

from whalefl.bench import subject
from whalefl.bench.floor import CORES
from whalefl.bench.processes import tree_memory
from whalefl.bench.results import SCHEMA
from whalefl.bench.scenarios import CLASSES, LADDER, random_task
from whalefl.errors import require
from whalefl.federation.stacks import get_ready
from whalefl.runs import write_json
from whalefl.tasks.costs import level_cost

CLIENTS = (20, 40, 200, 2000)  # 20 are all of a cohort: from 40 on cohorts differ from round to round
ROUNDS = 30  # after which cohorts drawn at random have had nearly every shape of stack
LOOPS = 5  # of which one may take a third less than the next
ENGINES = subject.ENGINES
_EVERY_S = 0.02


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one run in MB: what the process has before it starts, and what it takes beyond that.

    `assembled_mb` is the data that it holds once all clients are there and before the first round, `data_mb` the most
    data at any moment, `code_mb` the most pages of libraries' files. `shapes` is how many shapes of stacks it trained.
    """

    clients: int
    cohort: int
    shapes: int
    before_mb: float
    assembled_mb: float
    data_mb: float
    code_mb: float


@dataclass(frozen=True)
class MemoryResult:
    """Runs with ever more clients, beside the size of what has to be held: a model for each level and worker.

    `loop_mb` is the data that training the whole model in a plain loop takes, which every worker does too, and
    `activations_mb` what of it a forward pass keeps for the backward pass; `fork_mb` is what the same loop takes more
    in a forked process, which is where workers train.
    """

    engine: str
    command: str
    rounds: int
    model_mb: float
    activations_mb: float
    loop_mb: float
    fork_mb: float
    levels: int
    workers: int
    rows: tuple[MemoryRow, ...]

    @property
    def models_mb(self) -> float:
        """model x (levels + workers), of bare weights."""
        return self.model_mb * (self.levels + self.workers)

    @property
    def training_mb(self) -> float:
        """The same of models in training, each as much as a plain loop."""
        return self.loop_mb * (self.levels + self.workers)

    @property
    def client_kb(self) -> float:
        """What one more client takes, from the least to the most of them; 0 for a single run."""
        first, last = self.rows[0], self.rows[-1]
        return 1e3 * (last.assembled_mb - first.assembled_mb) / max(1, last.clients - first.clients)

    @property
    def shape_mb(self) -> float:
        """What one more shape of stack takes, from the first run to the last: no other run is fitted."""
        first, last = self.rows[0], self.rows[-1]
        grown = last.data_mb - first.data_mb - self.client_kb * (last.clients - first.clients) / 1e3
        return grown / max(1, last.shapes - first.shapes)

    def parts(self, row: MemoryRow) -> dict[str, float]:
        """What the data of a run is: known sizes, what was measured by itself, and the rest."""
        forked = self.engine != "plain"
        server = {"the global model, and when it was last trained: 2 models": 2 * self.model_mb}
        if forked:
            server["both anew and the counts as a round closes: 3 models"] = 3 * self.model_mb
            server["the global model as workers read it: 1 model"] = self.model_mb
        parts = {
            **server,
            "float64 sums: 2 models a worker": 2 * self.model_mb * self.workers,
            "weights, momentum and gradients: 3 models a worker": 3 * self.model_mb * self.workers,
            "activations of a training step, a worker": self.activations_mb * self.workers,
            "the rest of a plain training loop, a worker": self.workers
            * (self.loop_mb - 3 * self.model_mb - self.activations_mb),
        }
        if forked:
            parts["what the loop takes more once forked, a worker"] = self.fork_mb * self.workers
        parts["the clients"] = self.client_kb * row.clients / 1e3
        parts["shapes of stacks beyond the first run's"] = self.shape_mb * (row.shapes - self.rows[0].shapes)
        return {**parts, "what is left": row.data_mb - sum(parts.values())}


def write_memory(path: Path, results: Sequence[MemoryResult]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": SCHEMA, "results": [asdict(result) for result in results]})


def read_memory(path: Path) -> list[MemoryResult]:
    content = json.loads(path.read_text(encoding="utf8"))
    return [
        MemoryResult(**{**entry, "rows": tuple(MemoryRow(**row) for row in entry["rows"])})
        for entry in content["results"]
    ]


def measure_memory(
    engine: str, clients: tuple[int, ...], rounds: int, command: str, loops: int = LOOPS
) -> MemoryResult:
    """Run a simulation for each number of clients, one after the other."""
    require(Path("/proc/self/smaps_rollup").exists(), "memory", "off", "measured on Linux")
    get_ready(torch.device("cpu"))  # here, where nobody looks: what a compiler takes is not the simulator's
    whole = level_cost(random_task("mnist", CLASSES), 1, 1.0)
    loop = _loop_mb(subject.LOOP, loops)
    forked = loop if engine == "plain" else _loop_mb(subject.FORKED_LOOP, loops)
    return MemoryResult(
        engine=engine,
        command=command,
        rounds=rounds,
        model_mb=4 * whole.parameters / 1e6,
        activations_mb=subject.BATCH * whole.activation_bytes / 1e6,
        loop_mb=loop,
        fork_mb=forked - loop,
        levels=LADDER.levels,
        workers=1 if engine == "plain" else CORES,
        rows=tuple(_measured(engine, number, rounds) for number in clients),
    )


@cache
def _loop_mb(kind: str, loops: int) -> float:
    """The data that a plain loop takes, which is the same beside every engine."""
    return median(_measured(kind, subject.COHORT, rounds=1).data_mb for _ in range(loops))


def _measured(engine: str, clients: int, rounds: int) -> MemoryRow:
    command = [sys.executable, "-m", "whalefl.bench.subject", engine, str(clients), str(rounds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            looks = []
            for name in subject.stops(engine):
                require(child.stdout.readline().strip() == name, "the measured process", "gone", "alive")
                looks.append(tree_memory(child.pid))
                child.stdin.write("go\n")
                child.stdin.flush()
            while child.poll() is None:
                looks.append(tree_memory(child.pid))
                sleep(_EVERY_S)
            shapes = child.stdout.readline().split()
        finally:
            child.kill()
    require(child.returncode == 0, "the measured process's exit code", child.returncode, "0")
    before = looks[0]
    return MemoryRow(
        clients=clients,
        cohort=min(subject.COHORT, clients),
        shapes=int(shapes[1]) if shapes else 1,
        before_mb=before.data_mb + before.code_mb,
        assembled_mb=looks[1].data_mb - before.data_mb,
        data_mb=max(look.data_mb for look in looks) - before.data_mb,
        code_mb=max(look.code_mb for look in looks) - before.code_mb,
    )
