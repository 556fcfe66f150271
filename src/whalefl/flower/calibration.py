"""A threshold found by one bit per device and round, so that utilities never leave the devices.

Every round the server puts a value on trial and every device answers whether its utility exceeds it. The value moves
along a logarithmic scale towards the wanted quantile: in steps that grow while all trials miss on the same side, and
shrink once they have missed on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_FIRST_STEP = 1.0  # powers of ten
_SMALLEST_STEP = 0.02


@dataclass(frozen=True)
class Calibration:
    """The search: the exponent (base ten) on trial, the step, the side of the last miss, and the rounds answered."""

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
        """Whether the search is over: after `rounds` of answers, later only while nothing was bracketed."""
        return self.bracketed and self.rounds >= rounds


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
        return replace(answered, bracketed=True)
    turned = calibration.side not in (0, side)
    bracketed = calibration.bracketed or turned
    step = calibration.step / 2 if bracketed else calibration.step * (2 if calibration.side else 1)
    step = max(_SMALLEST_STEP, min(step, 8.0))
    return replace(
        answered,
        exponent=max(-300.0, min(300.0, calibration.exponent + side * step)),
        step=step,
        side=side,
        bracketed=bracketed,
    )
