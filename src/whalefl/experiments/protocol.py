"""What all reported runs have in common: targets, horizons, seeds, and in which order they are worth having."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whalefl.federation.methods import METHODS

SEVEN = tuple(METHODS)
"""The methods of the paper, FedAvg first."""

PAIRS = (("whale", "heterofl"), ("whalerolex", "fedrolex"), ("whaledropout", "feddropout"))
"""Each adaptive method and the fixed one it is an extension of."""

LABELS = {
    "fedavg": "FedAvg",
    "heterofl": "HeteroFL",
    "feddropout": "FedDropout",
    "fedrolex": "FedRolex",
    "whale": "WHALE",
    "whaledropout": "WHALEDropout",
    "whalerolex": "WHALERolex",
}

FIRST_TUNING_SEED = 100

MOST_ROUNDS = 5000
"""The horizon ends a run; this only keeps a round of no length from going on for ever."""

ENDED_EARLIER = {("cifar10", "whaledropout"): 1000}
"""Tasks and methods whose runs end after so many rounds, before the horizon if need be: where all devices fall to the
smallest slices a round lasts seconds, and the horizon is thousands of rounds away. No other run has had as many."""


def most_rounds(task: str, method: str) -> int:
    """After how many rounds a run ends at the latest."""
    return ENDED_EARLIER.get((task, method), MOST_ROUNDS)


@dataclass(frozen=True)
class Setting:
    """A task as it is reported: the target accuracy, the virtual hours every method gets, the seeds, the tier.

    Runs of a lower tier come first. `tuning_hours` is what a tuning run gets. `extrapolated` marks models far beyond
    what was measured on the devices. Large models compute in a `precision` of their own, and take their batch-norm
    statistics over fewer samples of each device (`calibration`): GPU time is scarce.
    """

    task: str
    name: str
    target: float
    hours: float
    seeds: int
    tier: int
    tuning_hours: float
    sigma: int | None = None
    extrapolated: bool = False
    precision: Literal["tf32", "bf16"] = "tf32"
    calibration: int = 500

    @property
    def horizon_s(self) -> float:
        return 3600 * self.hours


MNIST = Setting("mnist", "CNN@MNIST", 0.85, 1.5, 10, 1, 1.5, sigma=2)
MNIST_5 = Setting("mnist", "CNN@MNIST, sigma 5", 0.90, 1.0, 5, 2, 1.0, sigma=5)
MNIST_10 = Setting("mnist", "CNN@MNIST, sigma 10", 0.95, 0.75, 5, 2, 0.75, sigma=10)
HAR = Setting("har", "CNN@HAR", 0.88, 1.0, 10, 2, 0.5)
CIFAR10 = Setting(
    "cifar10", "ResNet18@CIFAR10", 0.70, 40.0, 3, 6, 10.0, extrapolated=True, precision="bf16", calibration=100
)
WIKITEXT2 = Setting("wikitext2", "Transformer@WikiText2", 0.37, 10.0, 3, 8, 5.0, extrapolated=True, precision="bf16")

TASKS = (MNIST, CIFAR10, WIKITEXT2, HAR)
"""In the order of the paper's tables."""

SIGMAS = (MNIST, MNIST_5, MNIST_10)
