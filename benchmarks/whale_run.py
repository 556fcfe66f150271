"""Where the time of a whole run goes: WHALE on MNIST, or another method and task, with an evaluation every round.

On a GPU the run is made twice, each time in a process of its own: as the first one on a machine, which compiles the
kernels that a GPU needs, and again, when the compiler has kept them. On a CPU several methods run, each once.

python benchmarks/whale_run.py --device cuda --rounds 400      # writes results/bench/whale_run.json
python benchmarks/whale_run.py --methods fedavg,whale          # writes results/bench/whale_run_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whalefl.config import compose, preset
from whalefl.engines import make_engine
from whalefl.execution import prepared
from whalefl.federation import simulation
from whalefl.federation.engine import Engine
from whalefl.federation.evaluation import Score
from whalefl.federation.orders import Order, Outcome
from whalefl.report.summary import WINDOW, time_to_target
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights
from whalefl.values import RoundRecord

TIMES = ("the first on a machine", "again")
RESULTS = Path("results/bench")


class Timed:
    """An engine with a stopwatch."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds, self.evaluations = engine, list[float](), list[float]()

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        start = time.perf_counter()
        sums, outcomes = self.engine.train(weights, orders)
        if weights and next(iter(weights.values())).is_cuda:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)
        return sums, outcomes

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        start = time.perf_counter()
        score = self.engine.evaluate(weights, calibration)
        self.evaluations.append(time.perf_counter() - start)
        return score

    def close(self) -> None:
        self.engine.close()


class Recordings:
    """A stopwatch on everything that the engine of a GPU records, kernels compiled on the way included."""

    def __init__(self) -> None:
        from whalefl.federation import graphs

        self.seconds, self._recorded = list[float](), graphs.recorded
        graphs.recorded = self.recorded

    def recorded(self, work: Callable[[], None], *others: Any, **named: Any) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph = self._recorded(work, *others, **named)
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)
        return graph


def timed_run(task: str, method: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Make the run and say where its time went."""
    on_gpu = wanted["device"] == "cuda"
    recordings = Recordings().seconds if on_gpu else []
    simulation.use_one_thread()
    experiment = compose([preset(task), preset("paper"), preset(f"{task}/{method}"), {"method": method, **wanted}])
    federation = prepared(experiment)
    engine = Timed(make_engine(experiment, federation.task))
    start, records, ends = time.perf_counter(), list[RoundRecord](), list[float]()
    for finished in simulation.rounds_of(federation, engine):
        records.append(finished.record)
        ends.append(time.perf_counter() - start)
    engine.close()
    total, rounds, training = ends[-1], len(records), sum(engine.seconds)
    reached = time_to_target([asdict(record) for record in records], experiment.target)
    return {
        "rounds": rounds,
        "reached_round": None if reached is None else reached["round"],
        "reached_s": None if reached is None else ends[reached["round"] + WINDOW - 2],
        "total_s": total,
        "training_ms": 1e3 * training / rounds,
        "recordings": len(recordings),
        "recording_s": sum(recordings),
        "training_without_recording_ms": 1e3 * (training - sum(recordings)) / rounds,
        "evaluation_ms": 1e3 * mean(engine.evaluations),
        "other_ms": 1e3 * (total - training - sum(engine.evaluations)) / rounds,
        "gpu_memory_mb": torch.cuda.max_memory_reserved() / 1e6 if on_gpu else None,
        "mean_share": mean(device.share for record in records for device in record.devices),
        "final_accuracy": records[-1].accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, help="400 on a GPU and 25 on a CPU, if left out")
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--methods", default="whale")
    parser.add_argument("--precision", help="tf32 on a GPU and fp32 on a CPU, if left out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--once", action="store_true", help="make one run here, and print where its time went")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    wanted = {
        "device": arguments.device,
        "rounds": arguments.rounds or (400 if on_gpu else 25),
        "precision": arguments.precision or ("tf32" if on_gpu else "fp32"),
    }
    methods = arguments.methods.split(",")
    if on_gpu and len(methods) > 1:
        parser.error(
            f"--methods is {arguments.methods!r}; on a GPU it must be one: the first run of any compiles for all"
        )
    if arguments.once:
        print(json.dumps(timed_run(arguments.task, methods[0], wanted)))
        return
    words = [f"--{key}={value}" for key, value in {**wanted, "task": arguments.task}.items()]
    runs = {}
    with tempfile.TemporaryDirectory() as compiled:
        for method in methods:
            for name in TIMES if on_gpu else (method,):
                command = [sys.executable, __file__, *words, f"--methods={method}", "--once"]
                environment = os.environ | {"TRITON_CACHE_DIR": compiled}
                answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
                runs[name] = json.loads(answer.stdout.splitlines()[-1])
    asked = [*words, f"--methods={arguments.methods}"]
    result = {"command": " ".join(["python", "benchmarks/whale_run.py", *asked]), "runs": runs}
    out = arguments.out or RESULTS / ("whale_run.json" if on_gpu else "whale_run_cpu.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
