"""The work in whalefl: a variant of `whalefl bench` on its scenario of the same name.

python with_whalefl.py WORK ROUNDS VARIANT
"""

from __future__ import annotations

import sys

from work import Gate

from whalefl.bench.scenarios import SCENARIOS, orders_of, random_task
from whalefl.bench.variants import VARIANTS
from whalefl.federation.simulation import use_one_thread


def main() -> None:
    scenario, rounds, variant = SCENARIOS["cpu"][sys.argv[1]], int(sys.argv[2]), VARIANTS["cpu"][sys.argv[3]]
    use_one_thread()
    task = random_task(scenario.task, scenario.samples)
    orders, weights = orders_of(scenario, task), task.initial_weights(0)
    with variant.make(task, scenario.training) as train_round:
        gate = Gate()
        gate.pass_()
        for number in range(1, rounds + 1):
            train_round(weights, orders)
            gate.pass_(last=number == rounds)


if __name__ == "__main__":
    main()
