"""A threshold found by one bit per device and round, so that utilities never leave the devices.

Every round the server puts a value on trial and every device answers whether its utility exceeds it. The value moves
along a logarithmic scale towards the wanted quantile: in steps that double until the trials have missed on both sides,
and from then on halve whenever the side changes. Thus it follows utilities that move away, and comes to rest where it
chases its own effect (a higher threshold makes slices, and with them utilities, smaller). It is frozen when it has been
searched for long enough and found well enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_FIRST_STEP = 1.0  # powers of ten
_LARGEST_STEP = 8.0
_SMALLEST_STEP = 0.02
_FINE_STEP = 0.15
"""Half a level: a threshold that is off by a factor of two moves every device by one level."""


@dataclass(frozen=True)
class Calibration:
    """The search: the exponent (base ten) on trial, the step, the side of the last miss, whether trials have missed on
    both sides, and the rounds answered."""

    exponent: float = 0.0
    step: float = _FIRST_STEP
    side: int = 0
    bracketed: bool = False
    rounds: int = 0

    @property
    def trial(self) -> float:
        return float(10.0**self.exponent)

    @property
    def threshold(self) -> float | None:
        """The value on trial, once trials have missed on both sides."""
        return self.trial if self.bracketed else None

    def frozen(self, rounds: int) -> bool:
        """Whether the search is over: after `rounds` of answers, and later only while it is still coarse."""
        return self.bracketed and self.rounds >= rounds and self.step <= _FINE_STEP


def heard(calibration: Calibration, bits: Sequence[bool], quantile: float, rounds: int) -> Calibration:
    """The search after a round of answers, unless it is frozen.

    `quantile` of the utilities are to lie below the threshold.
    """
    if not bits or calibration.frozen(rounds):
        return calibration
    below = sum(not bit for bit in bits) / len(bits)
    side = (below < quantile) - (below > quantile)  # 1: the trial is too low
    answered = replace(calibration, rounds=calibration.rounds + 1)
    if side == 0:
        return replace(answered, step=min(calibration.step, _FINE_STEP), bracketed=True)
    turned = calibration.side == -side
    bracketed, step = calibration.bracketed or turned, calibration.step
    if turned:
        step = max(_SMALLEST_STEP, step / 2)
    elif calibration.side and not bracketed:
        step = min(_LARGEST_STEP, step * 2)
    return replace(
        answered,
        exponent=max(-300.0, min(300.0, calibration.exponent + side * step)),
        step=step,
        side=side,
        bracketed=bracketed,
    )
