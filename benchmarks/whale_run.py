"""Where the time of a whole run goes: WHALE on MNIST, or another method and task, with an evaluation every round.

python benchmarks/whale_run.py --device cuda --rounds 400      # writes results/bench/whale_run.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from whalefl.config import compose, preset
from whalefl.execution import make_engine, prepared
from whalefl.federation import simulation
from whalefl.federation.engine import Engine
from whalefl.federation.evaluation import Score
from whalefl.federation.orders import Order, Outcome
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--method", default="whale")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--out", type=Path, default=Path("results/bench/whale_run.json"))
    arguments = parser.parse_args()
    simulation.use_one_thread()
    task, method = arguments.task, arguments.method
    wanted = {key: getattr(arguments, key) for key in ("device", "rounds", "precision")}
    experiment = compose([preset(task), preset("paper"), preset(f"{task}/{method}"), {"method": method, **wanted}])
    federation = prepared(experiment)
    engine = Timed(make_engine(experiment, federation.task))
    start = time.perf_counter()
    records = [finished.record for finished in simulation.rounds_of(federation, experiment, engine)]
    total = time.perf_counter() - start
    engine.close()
    shares = [device.share for record in records for device in record.devices]
    result = {
        "command": f"python benchmarks/whale_run.py --device {arguments.device} --rounds {arguments.rounds}"
        f" --task {task} --method {method} --precision {arguments.precision}",
        "rounds": len(records),
        "total_s": total,
        # Slots are recorded when they are first needed, nearly all of them in the first rounds.
        "training_ms": 1e3 * mean(engine.seconds),
        "training_without_recording_ms": 1e3 * mean(sorted(engine.seconds)[: int(0.95 * len(engine.seconds))]),
        "evaluation_ms": 1e3 * mean(engine.evaluations),
        "other_ms": 1e3 * (total - sum(engine.seconds) - sum(engine.evaluations)) / len(records),
        "gpu_memory_mb": torch.cuda.max_memory_reserved() / 1e6 if arguments.device == "cuda" else None,
        "mean_share": mean(shares),
        "final_accuracy": records[-1].accuracy,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
