"""The devices of a fleet: measured training times, and the curve from FLOPs to seconds for other models.

The five kinds and their times per sample (device_times.csv) were measured on the testbed with the paper's CNN on
MNIST at five widths. Another model is placed on a device's curve by its FLOPs.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from whalefl.errors import WhaleflError, require, require_finite_number, require_one_of

REFERENCE_FLOPS = {1.0: 238_946_304, 0.5: 60_195_840, 0.25: 15_278_592, 0.125: 3_934_464, 0.0625: 1_041_024}
"""FLOPs of one training step per sample (forward and backward) of the measured CNN at each measured width."""

# Typical board or package power under load in watts, and memory in megabytes: approximations from the vendors'
# figures, for comparing methods with each other and not for predicting a battery.
_POWER_W = {
    "MacBookPro2018": 40.0,
    "JetsonXavier": 20.0,
    "JetsonTX2": 10.0,
    "JetsonNano": 7.0,
    "RaspberryPi4": 5.5,
}
_MEMORY_MB = {
    "MacBookPro2018": 16384.0,
    "JetsonXavier": 16384.0,
    "JetsonTX2": 8192.0,
    "JetsonNano": 4096.0,
    "RaspberryPi4": 4096.0,
}
KINDS = tuple(_POWER_W)
"""From the fastest to the slowest: a fixed assignment gives them the levels 1 to 5 in this order."""


@cache
def measured_times() -> dict[str, dict[float, float]]:
    """kind -> width -> measured seconds per sample."""
    times: dict[str, dict[float, float]] = {}
    text = files("whalefl.fleet").joinpath("device_times.csv").read_text(encoding="utf8")
    for row in csv.DictReader(text.splitlines()):
        times.setdefault(row["device"], {})[float(row["width"])] = float(row["seconds_per_sample"])
    return times


@cache
def seconds_per_sample(kind: str, flops: float) -> float:
    """The training time per sample of a model with this many FLOPs on a kind of device."""
    points = sorted((REFERENCE_FLOPS[width], seconds) for width, seconds in measured_times()[kind].items())
    return on_curve(points, flops)


def on_curve(points: Sequence[tuple[float, float]], flops: float) -> float:
    """Piecewise linear through measured points (FLOPs, seconds per sample), given in rising order.

    Proportional beyond the widest, flat below the narrowest: small models are slower per FLOP.
    """
    x, y = zip(*points, strict=True)
    if flops > x[-1]:
        return float(y[-1] * flops / x[-1])
    return float(np.interp(flops, x, y))


@dataclass(frozen=True)
class DeviceGroup:
    """`count` equal devices.

    What is left out is taken from the measured kind. `slowdown` makes a device that is so many times slower than
    its kind; `widest_level` caps what an adaptive policy may choose; `fixed_level` is what a fixed one assigns;
    `trace` is a CSV file (`time_s,mbps`) that replaces the weather's links. `curve` holds pairs of FLOPs and seconds
    per sample that were measured on the device itself and replace those of its kind; `overhead_s` is added to every
    round (messages, processes), whatever its size.
    """

    kind: str
    count: int = 4
    slowdown: float = 1.0
    widest_level: int = 1
    fixed_level: int | None = None
    power_w: float | None = None
    memory_mb: float | None = None
    trace: str | None = None
    curve: tuple[tuple[float, float], ...] | None = None
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        require(self.count >= 1, "count", self.count, "at least 1")
        require_finite_number("slowdown", self.slowdown, above=0)
        require(self.widest_level >= 1, "widest_level", self.widest_level, "at least 1")
        if self.fixed_level is not None:
            require(self.fixed_level >= 1, "fixed_level", self.fixed_level, "at least 1")
        if self.power_w is not None:
            require_finite_number("power_w", self.power_w, least=0)
        if self.memory_mb is not None:
            require_finite_number("memory_mb", self.memory_mb, above=0)
        require_finite_number("overhead_s", self.overhead_s, least=0)
        if self.curve is not None:
            flops = [point[0] for point in self.curve]
            rising = bool(flops) and flops == sorted(set(flops)) and all(number > 0 for p in self.curve for number in p)
            require(rising, "curve", self.curve, "pairs of FLOPs and seconds above 0, the FLOPs rising")


@dataclass(frozen=True)
class Device:
    """One device of a fleet, with everything filled in."""

    index: int
    kind: str
    slowdown: float
    widest_level: int
    fixed_level: int
    power_w: float
    memory_mb: float
    trace: str | None
    curve: tuple[tuple[float, float], ...] | None = None
    overhead_s: float = 0.0

    def computing_s(self, flops: float, samples: float) -> float:
        """The seconds to train on this many samples of a model with this many FLOPs each, without other load."""
        known = seconds_per_sample(self.kind, flops) if self.curve is None else on_curve(self.curve, flops)
        return known * samples * self.slowdown


@dataclass(frozen=True)
class Fleet:
    """Groups of devices; by default the testbed of the paper, four of each kind."""

    groups: tuple[DeviceGroup, ...] = tuple(DeviceGroup(kind) for kind in KINDS)

    def __post_init__(self) -> None:
        if not self.groups:
            raise WhaleflError("groups is empty; a fleet must have at least one device")

    @property
    def devices(self) -> tuple[Device, ...]:
        members = [group for group in self.groups for _ in range(group.count)]
        return tuple(_device(index, group) for index, group in enumerate(members))

    def __len__(self) -> int:
        return sum(group.count for group in self.groups)


def _device(index: int, group: DeviceGroup) -> Device:
    fixed = group.fixed_level if group.fixed_level is not None else KINDS.index(group.kind) + 1
    return Device(
        index=index,
        kind=group.kind,
        slowdown=group.slowdown,
        widest_level=group.widest_level,
        fixed_level=fixed,
        power_w=group.power_w if group.power_w is not None else _POWER_W[group.kind],
        memory_mb=group.memory_mb if group.memory_mb is not None else _MEMORY_MB[group.kind],
        trace=group.trace,
        curve=group.curve,
        overhead_s=group.overhead_s,
    )
