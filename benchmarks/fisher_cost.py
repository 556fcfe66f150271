"""What measuring Fisher information costs: rounds with and without it in turn, as a share of the round.

python benchmarks/fisher_cost.py                    # writes results/bench/fisher_cpu.json
python benchmarks/fisher_cost.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from whalefl.bench.scenarios import SCENARIOS, orders_of, random_task
from whalefl.bench.variants import VARIANTS
from whalefl.federation.simulation import use_one_thread

PAIRS = {"cpu": ("workers", "mixed", "mixed-measured"), "cuda": ("graphs", "mixed-unmeasured", "mixed")}
_WARM = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=PAIRS)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    use_one_thread()
    variant, *names = PAIRS[arguments.device]
    scenarios = [SCENARIOS[arguments.device][name] for name in names]
    task = random_task("mnist", 4000).to(arguments.device)
    weights = {name: weight.to(arguments.device) for name, weight in task.initial_weights(0).items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with VARIANTS[arguments.device][variant].make(task, scenarios[0].training) as train_round:
        for turn in range(arguments.repeats + _WARM):
            for scenario in scenarios:
                orders = orders_of(scenario, task)
                start = time.perf_counter()
                train_round(weights, orders)
                if arguments.device == "cuda":
                    torch.cuda.synchronize()
                if turn >= _WARM:
                    seconds[scenario.name].append(time.perf_counter() - start)
    without, with_it = (seconds[name] for name in names)
    result = {
        "command": f"python benchmarks/fisher_cost.py --device {arguments.device} --repeats {arguments.repeats}",
        "variant": variant,
        "repeats": arguments.repeats,
        "without_s": median(without),
        "with_s": median(with_it),
        "share_of_a_round": median((b - a) / b for a, b in zip(without, with_it, strict=True)),
    }
    out = arguments.out or Path(f"results/bench/fisher_{arguments.device}.json")
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
