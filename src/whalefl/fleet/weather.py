"""The weather: how links, load and memory change over virtual time, the same for every method compared.

Every process is a function of (seed, device, virtual time) and of nothing else. A process that redraws its state at
random moments is memoryless, so its moments can be drawn slot by slot and its state found by looking back to the
last one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from whalefl.errors import WhaleflError, require, require_finite_number
from whalefl.fleet.devices import Device
from whalefl.fleet.links import TESTBED_LINKS, Link, transmission_seconds
from whalefl.fleet.traces import Trace
from whalefl.rng import stream
from whalefl.values import Conditions


@dataclass(frozen=True)
class Weather:
    """How conditions change.

    The link is redrawn uniformly from `links` after Exp(`link_mean_s`). Background load is on or off for
    Exp(`load_mean_s`) each and multiplies computing times by `load_factor` while it is on. With `fading`, a gain
    h ~ Exp(1) is drawn every `fading_slot_s` and the rate is multiplied by clip(log2(1 + 10 h) / log2 11, 0.1, 1.2).
    The free share of a device's memory is redrawn uniformly between `least_free_memory` and 1 after
    Exp(`memory_mean_s`).
    `trace_power_w` is what a radio draws on a link that replays a trace.
    """

    links: tuple[Link, ...] = TESTBED_LINKS
    link_mean_s: float = 180.0
    load_factor: float = 2.0
    load_mean_s: float = 180.0
    fading: bool = True
    fading_slot_s: float = 10.0
    least_free_memory: float = 0.25
    memory_mean_s: float = 180.0
    trace_power_w: float = 2.5

    def __post_init__(self) -> None:
        if not self.links:
            raise WhaleflError("links is empty; the weather must have at least one link")
        require_finite_number("load_factor", self.load_factor, least=1)
        require_finite_number("trace_power_w", self.trace_power_w, least=0)
        for key in ("link_mean_s", "load_mean_s", "fading_slot_s", "memory_mean_s"):
            require_finite_number(key, getattr(self, key), above=0)
        free = self.least_free_memory
        require(0 < free <= 1, "least_free_memory", free, "above 0 and at most 1")


_REMEMBERED = 4096  # slots: a round asks for the latest ones of every device again and again

LOAD_FACTORS = {"default": Weather.load_factor, "calm": 1.0, "rough": 4.0}
"""The weathers that have a name, which differ in this alone."""

WEATHERS = {name: Weather(load_factor=factor) for name, factor in LOAD_FACTORS.items()}


def fading_gain(h: float) -> float:
    """The rate of a faded channel relative to its nominal one: log2(1 + 10 h) / log2 11 within [0.1, 1.2]."""
    return min(1.2, max(0.1, log2(1 + 10 * h) / log2(11)))


@lru_cache(_REMEMBERED)
def redraws(seed: int, name: str, device: int, slot: int, mean_s: float) -> tuple[list[float], list[float]]:
    """The moments in a slot of length `mean_s` at which a process is drawn anew, and its state before and after each.

    Redraws form a Poisson process: one expected in each slot, at uniform moments.
    """
    rng = stream(seed, name, device, slot)
    moments = np.sort(rng.uniform(slot * mean_s, (slot + 1) * mean_s, rng.poisson(1.0)))
    return moments.tolist(), rng.random(len(moments) + 1).tolist()


def latest_draw(seed: int, name: str, device: int, at_s: float, mean_s: float) -> float:
    """The state at `at_s` of a process that draws a new uniform number in [0, 1) after every Exp(mean_s)."""
    slot = int(at_s // mean_s)
    while True:
        moments, states = redraws(seed, name, device, slot, mean_s)
        passed = bisect_right(moments, at_s)
        if passed:
            return float(states[passed])
        if slot == 0:
            return float(states[0])  # the state at time 0
        slot -= 1


@dataclass(frozen=True, eq=False)
class Sky:
    """The weather of one experiment: settings, seed and the traces that some devices replay."""

    weather: Weather
    seed: int
    traces: dict[str, Trace]

    @classmethod
    def over(cls, weather: Weather, seed: int, devices: tuple[Device, ...]) -> Sky:
        paths = {device.trace for device in devices if device.trace is not None}
        return cls(weather, seed, {path: Trace.read(path) for path in sorted(paths)})

    def conditions(self, device: Device, at_s: float) -> Conditions:
        """What is true of a device at a moment of virtual time."""
        # On or off for Exp(mean) each is the same process as an even redraw after Exp(mean / 2).
        loaded = latest_draw(self.seed, "load", device.index, at_s, self.weather.load_mean_s / 2) < 0.5
        free = latest_draw(self.seed, "memory", device.index, at_s, self.weather.memory_mean_s)
        least = self.weather.least_free_memory
        link, nominal, rate = self._link(device, at_s)
        return Conditions(
            link=link,
            nominal_mbps=nominal,
            rate_mbps=rate,
            slowdown=self.weather.load_factor if loaded else 1.0,
            free_memory_mb=device.memory_mb * (least + (1 - least) * free),
        )

    def _link(self, device: Device, at_s: float) -> tuple[str, float, float]:
        """Name, nominal rate and present rate of a device's link."""
        if device.trace is not None:
            trace = self.traces[device.trace]
            return f"trace:{trace.name}", trace.mean_mbps, trace.rate(self.offset_s(device) + at_s)
        links = self.weather.links
        draw = latest_draw(self.seed, "link", device.index, at_s, self.weather.link_mean_s)
        link = links[int(draw * len(links))]
        gain = 1.0
        if self.weather.fading:
            slot = int(at_s // self.weather.fading_slot_s)
            gain = fading_gain(float(stream(self.seed, "fading", device.index, slot).exponential()))
        return link.name, link.mbps, link.mbps * gain

    def offset_s(self, device: Device) -> float:
        """Where in its trace a device starts."""
        if device.trace is None:
            return 0.0
        length = self.traces[device.trace].duration_s
        return float(stream(self.seed, "trace offset", device.index).uniform(0, length))

    def transmission_s(self, device: Device, conditions: Conditions, bits: float, start_s: float) -> float:
        """The true time to send these bits: constant rate inside a round, or the integral over a trace."""
        if device.trace is None:
            return transmission_seconds(bits, conditions.rate_mbps)
        return self.traces[device.trace].transmission_seconds(bits, self.offset_s(device) + start_s)

    def radio_power_w(self, link: str) -> float:
        powers = {known.name: known.power_w for known in self.weather.links}
        return powers.get(link, self.weather.trace_power_w)
