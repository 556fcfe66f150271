"""The plain values that the rooms exchange: levels, conditions, delays, reports, coverage, one round's record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whalefl.errors import require

NARROWEST = 1e-6
"""No model has an axis so long that a smaller share of it would be another slice."""


@dataclass(frozen=True)
class Ladder:
    """The sizes a device may choose from: level 1 is the whole model, level P the smallest slice.

    Level p keeps the share s^(p-1) of every axis, hence about s^(2(p-1)) of the parameters.
    """

    levels: int = 5
    shrink: float = 0.5

    def __post_init__(self) -> None:
        require(self.levels >= 1, "levels", self.levels, "at least 1")
        require(0 < self.shrink <= 1, "shrink", self.shrink, "above 0 and at most 1")
        smallest = self.shrink ** (self.levels - 1)
        require(smallest >= NARROWEST, "shrink", self.shrink, f"such that the smallest width is at least {NARROWEST}")

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, self.levels + 1))

    def width(self, level: int) -> float:
        """The share of every axis that a level keeps."""
        require(1 <= level <= self.levels, "level", level, f"between 1 and {self.levels}")
        return float(self.shrink ** (level - 1))


@dataclass(frozen=True)
class Profile:
    """What does not change about a device: its kind, its caps, and the mini-batches it trains on in a round."""

    device: int
    kind: str
    fixed_level: int
    widest_level: int
    batches: int


@dataclass(frozen=True)
class Conditions:
    """The state of one device and its link at one moment of virtual time.

    `slowdown` multiplies every computing time (background load).
    """

    link: str
    nominal_mbps: float
    rate_mbps: float
    slowdown: float
    free_memory_mb: float


@dataclass(frozen=True)
class Delay:
    """The seconds a device spends in a round on computing and on the air."""

    computing_s: float
    transmission_s: float

    @property
    def total_s(self) -> float:
        return self.computing_s + self.transmission_s


@dataclass(frozen=True)
class Energy:
    """The joules a device spends in a round on computing and on the radio."""

    computing_j: float
    radio_j: float


@dataclass(frozen=True)
class DeviceReport:
    """One device in one round: what it chose, what it believed, what happened.

    `known` is the delay the device expected at its level, `true` the one it met; `unit_s` is the time it expected
    for the smallest subnetwork. `share` is the part of the model's parameters in its slice; `fisher` is the mean
    Fisher information measured in this round, `fisher_unit` that of the smallest slice inside this one alone, which
    does not grow with the level.
    """

    device: int
    kind: str
    level: int
    share: float
    loss: float
    utility: float | None
    fisher: float | None
    known: Delay
    true: Delay
    unit_s: float
    energy: Energy
    link: str
    rate_mbps: float
    slowdown: float
    free_memory_mb: float
    bytes_up: int
    bytes_down: int
    fisher_unit: float | None = None


@dataclass(frozen=True)
class CountShare:
    """The coordinates trained by exactly `devices` devices: their share of the model, and how many classes they saw."""

    devices: int
    share: float
    classes: float | None


@dataclass(frozen=True)
class Coverage:
    """How the devices of one round covered the model, coordinate by coordinate.

    `least` is |M*|, the smallest number of devices over the coordinates that were trained at all; `untouched` the
    share that nobody trained; the ages are rounds since a coordinate was last trained.
    """

    least: int
    untouched: float
    mean_age: float
    oldest_age: int
    counts: tuple[CountShare, ...]


@dataclass(frozen=True)
class RoundRecord:
    """One line of metrics.jsonl. `time_s` is the virtual time when the round ended.

    Accuracy, loss and further `metrics` of the global model are there for the rounds in which it was evaluated.
    """

    round: int
    time_s: float
    round_s: float
    accuracy: float | None
    loss: float | None
    metrics: Mapping[str, float]
    train_loss: float
    threshold: float | None
    preferred_s: float | None
    coverage: Coverage
    devices: tuple[DeviceReport, ...]
