"""What a device knows of its own conditions, kept apart from what is true of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whalefl.fleet.devices import Device
from whalefl.fleet.latency import LatencySettings, Workload, charged_bits, expected_delay, true_delay
from whalefl.fleet.weather import Sky
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


def expected_delays(
    settings: LatencySettings,
    sky: Sky,
    device: Device,
    works: Sequence[Workload],
    knowledge: Knowledge,
    true: Conditions,
    start_s: float,
) -> tuple[Delay, ...]:
    """What a device expects each level to take; an oracle expects what will be true, outages of a trace included."""
    if settings.knowledge == "oracle":
        return tuple(true_delay(settings, sky, device, work, true, start_s) for work in works)
    known = known_conditions(settings, knowledge, true)
    return tuple(expected_delay(settings, device, work, known) for work in works)


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
