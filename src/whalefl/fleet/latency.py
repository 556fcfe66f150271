"""How long a device takes at a level, and how much memory it needs: what it may expect, and what it meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whalefl.errors import require, require_one_of
from whalefl.fleet.devices import Device
from whalefl.fleet.links import transmission_seconds
from whalefl.fleet.weather import Sky
from whalefl.values import Conditions, Delay

KNOWLEDGE = ("oracle", "last", "ewma")


@dataclass(frozen=True)
class LatencySettings:
    """What a round's time is made of.

    With `download`, receiving the slice is charged at the same rate as sending it. `knowledge` is what a device
    knows of its conditions when it chooses: the truth (`oracle`), its `last` measurement, or an `ewma` of its own
    measurements in which the newest weighs `ewma_weight`.
    """

    download: bool = True
    knowledge: Literal["oracle", "last", "ewma"] = "ewma"
    ewma_weight: float = 0.3

    def __post_init__(self) -> None:
        require_one_of("knowledge", self.knowledge, KNOWLEDGE)
        require(0 < self.ewma_weight <= 1, "ewma_weight", self.ewma_weight, "above 0 and at most 1")


@dataclass(frozen=True)
class Workload:
    """One round of training at one level: samples (Fisher measurements included), FLOPs each, bits, memory."""

    level: int
    samples: float
    flops: float
    upload_bits: int
    download_bits: int
    memory_mb: float


def charged_bits(settings: LatencySettings, work: Workload) -> int:
    return work.upload_bits + (work.download_bits if settings.download else 0)


def expected_delay(settings: LatencySettings, device: Device, work: Workload, known: Conditions) -> Delay:
    """The delay a device expects at a level under the conditions it believes in."""
    return Delay(
        computing_s=device.computing_s(work.flops, work.samples) * known.slowdown,
        transmission_s=transmission_seconds(charged_bits(settings, work), known.rate_mbps),
    )


def true_delay(
    settings: LatencySettings, sky: Sky, device: Device, work: Workload, true: Conditions, start_s: float
) -> Delay:
    """The delay a device meets: download, compute, upload, one after the other from `start_s` on."""
    down = 0.0
    if settings.download:
        down = sky.transmission_s(device, true, work.download_bits, start_s)
    computing = device.computing_s(work.flops, work.samples) * true.slowdown
    up = sky.transmission_s(device, true, work.upload_bits, start_s + down + computing)
    return Delay(computing_s=computing, transmission_s=down + up)


def memory_level(works: Sequence[Workload], free_memory_mb: float) -> int:
    """The widest level whose training fits into the free memory; the smallest one always counts as fitting."""
    fitting = [work.level for work in works if work.memory_mb <= free_memory_mb]
    return min(fitting, default=works[-1].level)
