"""What it gains to train the rounds of several runs at once on a GPU: mixed rounds of one, two and four runs.

python benchmarks/together.py      # writes results/bench/together.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from whalefl.bench.scenarios import CLASSES, SCENARIOS, orders_of, random_task
from whalefl.federation.graphs import GraphEngine

RUNS = (1, 2, 4)
EXAMPLES = 200 * CLASSES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/bench/together.json"))
    arguments = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    for name in ("mixed", "narrow-small"):
        scenario = SCENARIOS["cuda"][name]
        task = random_task(scenario.task, EXAMPLES).to("cuda")
        engine, orders = GraphEngine(task, scenario.training), orders_of(scenario, task)
        weights = {name: weight.cuda() for name, weight in task.initial_weights(0).items()}
        seconds: dict[int, list[float]] = {runs: [] for runs in RUNS}
        for turn in range(arguments.repeats + 1):  # the first one records
            for runs in RUNS:
                torch.cuda.synchronize()
                start = time.perf_counter()
                engine.train_all([(weights, orders)] * runs)
                torch.cuda.synchronize()
                if turn:
                    seconds[runs].append((time.perf_counter() - start) / runs)
        result[name] = {str(runs): 1e3 * median(times) for runs, times in seconds.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "command": "python benchmarks/together.py",
        "machine": torch.cuda.get_device_name(),
        "ms a round": result,
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
