"""Policies: how a device picks its level, in two small halves.

The server half, `announce`, says what all devices are told before a round, from the reports of the rounds before.
The device half, `choose`, turns that announcement and what only the device knows into a level. Fisher values and
utilities are used on the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from statistics import median
from typing import Literal, Protocol, get_args

import numpy as np

from whalefl.errors import require, require_finite_number, require_one_of
from whalefl.rng import stream
from whalefl.scheduling.fisher import Normalisation, Window, mean_square
from whalefl.scheduling.levels import capped_level, normalised_utility, quantised_level
from whalefl.scheduling.utility import system_efficiency, training_efficiency, utility
from whalefl.values import Conditions, Delay, DeviceReport, Profile

LevelTimes = Sequence[Delay]
"""What a device expects a round to take at each level; level p stands at index p - 1."""


@dataclass(frozen=True)
class Announcement:
    """What the server tells every device before a round; None where there is nothing to tell yet."""

    round: int
    preferred_s: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class Choice:
    """A level, and the utility it came from where the policy has one."""

    level: int
    utility: float | None = None


@dataclass(frozen=True)
class ServerMemory:
    """What the server half keeps from round to round: what is settled, and the utilities seen while calibrating."""

    preferred_s: float | None = None
    utilities: tuple[float, ...] = field(default=())


class Policy(Protocol):
    """How big a part of the model a device trains."""

    @property
    def name(self) -> str: ...

    @property
    def needs_fisher(self) -> bool:
        """Whether Fisher information is measured, and charged."""
        ...

    @property
    def window(self) -> int:
        """How many rounds of Fisher information a device keeps."""
        ...

    def announce(
        self, memory: ServerMemory, round: int, reports: Sequence[DeviceReport]
    ) -> tuple[ServerMemory, Announcement]:
        """What to tell devices before `round`, given the reports of the round before."""
        ...

    def choose(
        self,
        announcement: Announcement,
        profile: Profile,
        conditions: Conditions,
        times: LevelTimes,
        window: Window,
    ) -> Choice: ...


ChooseLevel = Callable[[Announcement, Profile, Conditions, LevelTimes, Window], int]


@dataclass(frozen=True)
class FunctionPolicy:
    """A policy made of a plain function from what a device knows to a level."""

    function: ChooseLevel
    name: str = "own"
    needs_fisher: bool = False
    window: int = 10

    def announce(
        self, memory: ServerMemory, round: int, reports: Sequence[DeviceReport]
    ) -> tuple[ServerMemory, Announcement]:
        return memory, Announcement(round)

    def choose(
        self,
        announcement: Announcement,
        profile: Profile,
        conditions: Conditions,
        times: LevelTimes,
        window: Window,
    ) -> Choice:
        level = self.function(announcement, profile, conditions, times, window)
        whole = isinstance(level, Integral) and not isinstance(level, bool)
        require(whole and 1 <= level <= len(times), "level", level, f"between 1 and {len(times)}, a whole number")
        return Choice(int(level))


def full() -> Policy:
    """Every device trains the whole model (FedAvg)."""
    return FunctionPolicy(lambda *_: 1, name="full")


def fixed() -> Policy:
    """Every device trains the size that fits its kind, always the same (HeteroFL)."""
    return FunctionPolicy(lambda _a, profile, _c, times, _w: min(profile.fixed_level, len(times)), name="fixed")


def uniform(seed: int, once: bool = False) -> Policy:
    """Every device draws its level uniformly within its cap, anew every round or once for all: controls."""

    def draw(announcement: Announcement, profile: Profile, _c: Conditions, times: LevelTimes, _w: Window) -> int:
        rng = stream(seed, "random level", profile.device, 0 if once else announcement.round)
        return int(rng.integers(min(profile.widest_level, len(times)), len(times) + 1))

    return FunctionPolicy(draw, name="random-once" if once else "random")


@dataclass(frozen=True)
class Whale:
    """The paper's adaptive choice: utility = training efficiency x system efficiency^beta, against a threshold.

    `preferred_s` is T, the preferred length of a round in seconds: a number, or "auto", the median over the fleet of
    the time expected for the smallest slice in round 1. `threshold` is U_th: a number, or "auto", the `quantile` of
    the utilities of rounds 2 .. D+1 (of those known so far until then), frozen afterwards. `parts` leaves one of the
    two efficiencies out (whale-se, whale-te). `se_reference` names the slice whose delays the system efficiency is
    made of: "unit", as in the paper, or "full". `fisher` is the scalar made of the Fisher matrix.
    """

    beta: float = 2.0
    window: int = 10
    preferred_s: float | Literal["auto"] = "auto"
    threshold: float | Literal["auto"] = "auto"
    quantile: float = 0.5
    se_reference: Literal["unit", "full"] = "unit"
    fisher: Normalisation = "trace"
    parts: Literal["both", "system", "training"] = "both"

    def __post_init__(self) -> None:
        require_finite_number("beta", self.beta, least=0)
        require(self.window >= 1, "window", self.window, "at least 1")
        if self.preferred_s != "auto":
            require_finite_number("preferred_s", self.preferred_s, above=0)
        if self.threshold != "auto":
            require_finite_number("threshold", self.threshold, above=0)
        require_one_of("se_reference", self.se_reference, ("unit", "full"))
        require_one_of("fisher", self.fisher, get_args(Normalisation))
        require_one_of("parts", self.parts, ("both", "system", "training"))
        require(0 <= self.quantile <= 1, "quantile", self.quantile, "between 0 and 1")

    @property
    def name(self) -> str:
        return {"both": "whale", "system": "whale-se", "training": "whale-te"}[self.parts]

    @property
    def needs_fisher(self) -> bool:
        return self.parts != "system"

    def announce(
        self, memory: ServerMemory, round: int, reports: Sequence[DeviceReport]
    ) -> tuple[ServerMemory, Announcement]:
        preferred = memory.preferred_s if self.preferred_s == "auto" else self.preferred_s
        if preferred is None and reports:
            preferred = median(report.unit_s for report in reports)
        utilities = memory.utilities
        # The reports of rounds 2 .. D+1 arrive one round later; where few devices are selected there may be none yet.
        if round >= 3 and (round <= self.window + 2 or not utilities):
            utilities = (*utilities, *(r.utility for r in reports if r.utility is not None))
        threshold = self.threshold
        if threshold == "auto":
            settled = float(np.quantile(utilities, self.quantile)) if utilities else None
            return ServerMemory(preferred, utilities), Announcement(round, preferred, settled)
        return ServerMemory(preferred, utilities), Announcement(round, preferred, threshold)

    def choose(
        self,
        announcement: Announcement,
        profile: Profile,
        conditions: Conditions,
        times: LevelTimes,
        window: Window,
    ) -> Choice:
        value = self.utility(announcement.preferred_s, profile.batches, times, window)
        threshold = announcement.threshold
        if value is None or threshold is None:
            return Choice(len(times), value)
        # A threshold of 0 is reached by every utility.
        normalised = normalised_utility(value, threshold) if threshold > 0 else 1.0
        level = quantised_level(normalised, len(times))
        return Choice(capped_level(level, min(profile.widest_level, len(times))), value)

    def utility(self, preferred_s: float | None, batches: int, times: LevelTimes, window: Window) -> float | None:
        """The device's utility, or None while it has nothing to compute it from."""
        if preferred_s is None or (self.needs_fisher and not window):
            return None
        reference = times[-1] if self.se_reference == "unit" else times[0]
        system = system_efficiency(preferred_s, reference.transmission_s, reference.computing_s)
        if self.parts == "system":
            return utility(1.0, system, self.beta)
        training = training_efficiency(batches, mean_square(window, self.fisher))
        return utility(training, system if self.parts == "both" else 1.0, self.beta)
