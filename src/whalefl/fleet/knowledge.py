"""What a device knows of its own conditions, kept apart from what is true of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whalefl.fleet.devices import Device
from whalefl.fleet.latency import LatencySettings, Workload, charged_bits
from whalefl.values import Conditions, Delay


@dataclass(frozen=True)
class Knowledge:
    """What a device has learnt about its conditions from its own rounds.

    `quality` is its measured rate relative to the nominal rate of the link it was on, `slowdown` its measured
    computing time relative to an unloaded round. Before the first round both are 1: a device knows what it is and
    which link it is on, not how the link and the load will behave.
    """

    quality: float = 1.0
    slowdown: float = 1.0
    measured: bool = False

    def learn(self, settings: LatencySettings, quality: float, slowdown: float) -> Knowledge:
        """The knowledge after a round in which these were measured."""
        first = not self.measured or settings.knowledge == "last"
        new = 1.0 if first else settings.ewma_weight
        return Knowledge(
            quality=(1 - new) * self.quality + new * quality,
            slowdown=(1 - new) * self.slowdown + new * slowdown,
            measured=True,
        )


def known_conditions(settings: LatencySettings, knowledge: Knowledge, true: Conditions) -> Conditions:
    """What a device believes: the present link and free memory are plain to see, rate and load are not."""
    if settings.knowledge == "oracle":
        return true
    return replace(true, rate_mbps=true.nominal_mbps * knowledge.quality, slowdown=knowledge.slowdown)


def measure(
    settings: LatencySettings,
    knowledge: Knowledge,
    device: Device,
    work: Workload,
    true: Conditions,
    delay: Delay,
) -> Knowledge:
    """What a device learns from the delay it met."""
    unloaded = device.computing_s(work.flops, work.samples)
    rate_mbps = charged_bits(settings, work) / delay.transmission_s / 1e6
    return knowledge.learn(settings, rate_mbps / true.nominal_mbps, delay.computing_s / unloaded)
