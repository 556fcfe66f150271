"""The links of the testbed: nominal rates, and the power their radios draw while sending."""

from __future__ import annotations

from dataclasses import dataclass

from whalefl.errors import require, require_finite_number


@dataclass(frozen=True)
class Link:
    """A kind of wireless link. `power_w` is an approximation of the radio's draw while it sends or receives."""

    name: str
    mbps: float
    power_w: float

    def __post_init__(self) -> None:
        require(bool(self.name), "name", self.name, "a name")
        require_finite_number("mbps", self.mbps, above=0)
        require_finite_number("power_w", self.power_w, least=0)


TESTBED_LINKS = (Link("wifi5", 80.0, 1.3), Link("lte", 20.0, 2.5), Link("bluetooth", 10.0, 0.3))


def transmission_seconds(bits: float, mbps: float) -> float:
    """The time to send this many bits at a constant rate."""
    return bits / (mbps * 1e6)
