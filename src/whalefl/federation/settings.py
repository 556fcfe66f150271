"""How a federation runs: what every run has to say, whoever trains what on which devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from whalefl.errors import require, require_finite_number, require_one_of
from whalefl.federation.evaluation import EvaluationSettings
from whalefl.federation.training import Training
from whalefl.fleet.latency import LatencySettings
from whalefl.scheduling.fisher import FisherSettings
from whalefl.tasks.partition import Partition
from whalefl.values import Ladder


@dataclass(frozen=True)
class Aggregation:
    """How slices are averaged: every device alike or by its `samples`; label rows only over owners of the label."""

    weighting: Literal["devices", "samples"] = "devices"
    label_ownership: bool = True

    def __post_init__(self) -> None:
        require_one_of("weighting", self.weighting, ("devices", "samples"))


@dataclass(frozen=True)
class Settings:
    """How a federation runs, whatever its task, method and fleet.

    A run ends after `rounds` rounds, or with the first round that ends after `horizon_s` virtual seconds. A round
    closes when the share `wait_for` of its devices has finished; the slower ones do not count in it.
    """

    rounds: int = 100
    horizon_s: float | None = None
    clients_per_round: int | None = None
    wait_for: float = 1.0
    ladder: Ladder = field(default_factory=Ladder)
    partition: Partition = field(default_factory=Partition)
    training: Training = field(default_factory=Training)
    fisher: FisherSettings = field(default_factory=FisherSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    aggregation: Aggregation = field(default_factory=Aggregation)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", self.rounds, "at least 1")
        if self.horizon_s is not None:
            require_finite_number("horizon_s", self.horizon_s, above=0)
        if self.clients_per_round is not None:
            require(self.clients_per_round >= 1, "clients_per_round", self.clients_per_round, "at least 1")
        require(0 < self.wait_for <= 1, "wait_for", self.wait_for, "above 0 and at most 1")
