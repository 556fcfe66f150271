"""What is measured: rounds of so many clients at each level, on random images.

How long a step takes does not depend on the pixels, so no data set is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whalefl.federation.orders import Order
from whalefl.federation.rounds import draw_batches
from whalefl.federation.training import Training
from whalefl.rng import Seeds, stream
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.plans import Prefix
from whalefl.tasks.cifar10 import cifar10_task
from whalefl.tasks.mnist import mnist_task
from whalefl.tasks.partition import Partition, Share, split
from whalefl.tasks.task import Task
from whalefl.values import Ladder

LADDER = Ladder()
CLASSES = 10
_SEED = 0


@dataclass(frozen=True)
class Scenario:
    """One round: how many `clients` train at each level (widest first), on what, and `fisher` measurements of each."""

    name: str
    clients: tuple[int, ...]
    batch: int
    iterations: int = 10
    fisher: int = 0
    task: Literal["mnist", "cifar10"] = "mnist"

    @property
    def training(self) -> Training:
        return Training(iterations=self.iterations, batch=self.batch)

    @property
    def samples(self) -> int:
        """Examples trained on in a round."""
        return sum(self.clients) * self.iterations * self.batch

    @property
    def description(self) -> str:
        widths = [
            f"{count} at width {'1' if level == 1 else f'1/{round(1 / LADDER.width(level))}'}"
            for level, count in enumerate(self.clients, start=1)
            if count
        ]
        model = {"mnist": "CNN@MNIST", "cifar10": "ResNet18@CIFAR10"}[self.task]
        fisher = f", Fisher information on {self.fisher} of them" if self.fisher else ""
        return f"{model}, clients: {', '.join(widths)}; {self.iterations} iterations of {self.batch}{fisher}"


_MIXED, _FULL = (4, 4, 4, 4, 4), (20, 0, 0, 0, 0)

SCENARIOS: dict[str, dict[str, Scenario]] = {
    device: {scenario.name: scenario for scenario in scenarios}
    for device, scenarios in {
        "cpu": (
            Scenario("mixed", _MIXED, 10),
            Scenario("mixed-measured", _MIXED, 10, fisher=2),
            Scenario("full", _FULL, 10),
            Scenario("narrow", (0, 0, 0, 0, 100), 10),
        ),
        "cuda": (
            Scenario("mixed", _MIXED, 64, fisher=2),
            Scenario("mixed-unmeasured", _MIXED, 64),
            Scenario("full", _FULL, 64, fisher=2),
            Scenario("full-small", _FULL, 10),
            Scenario("narrow-small", (0, 0, 0, 0, 20), 10),
            Scenario("resnet18", _MIXED, 64, fisher=2, task="cifar10"),
        ),
    }.items()
}
"""device -> name -> scenario."""


def random_task(name: Literal["mnist", "cifar10"], examples: int, tests: int = 10) -> Task:
    """A task over random images in a data set's form, all classes alike in number."""
    rng = stream(_SEED, "images", name)
    shape = {"mnist": (28, 28), "cifar10": (3, 32, 32)}[name]
    arrays = {}
    for part, count in (("train", examples), ("test", tests)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % CLASSES).astype(np.uint8)
    return {"mnist": mnist_task, "cifar10": cifar10_task}[name](arrays, ("its images are random",))


def orders_of(scenario: Scenario, task: Task) -> list[Order]:
    """The orders of a scenario's round: every client owns two classes and trains once on each of its examples."""
    levels = [level for level, count in enumerate(scenario.clients, start=1) for _ in range(count)]
    shares = split(Partition(), task.train.targets.cpu().numpy(), CLASSES, len(levels), Seeds.all(_SEED))
    steps = np.sort(stream(_SEED, "fisher steps").permutation(scenario.iterations)[: scenario.fisher])
    measured = tuple(int(step) for step in steps)
    return [
        _order(scenario, task, device, level, share, measured)
        for device, (level, share) in enumerate(zip(levels, shares, strict=True))
    ]


def _order(scenario: Scenario, task: Task, device: int, level: int, share: Share, measured: tuple[int, ...]) -> Order:
    width, batch, rng = LADDER.width(level), scenario.batch, stream(_SEED, "draws", device)
    shape = (scenario.iterations, batch)
    return Order(
        device=device,
        level=level,
        width=width,
        lr=scenario.training.lr,
        contribution=Contribution(Prefix().plan(task.axes, width, 0, device, _SEED), share.owned),
        batches=draw_batches(share, 0, scenario.iterations, batch, device, _SEED),
        augment_draws=None if task.augment is None else rng.random((*shape, task.augment.draws), dtype=np.float32),
        noise_seed=device,
        labels=share.owned,
        fisher_steps=measured,
        fisher_draws=rng.random((len(measured), batch), dtype=np.float32),
        unit_plan=Prefix().plan(task.axes, LADDER.width(LADDER.levels), 0, device, _SEED),
    )
