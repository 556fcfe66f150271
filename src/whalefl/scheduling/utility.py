"""How much it is worth that a device trains a wide slice now: training efficiency times system efficiency."""

from __future__ import annotations

from math import sqrt
from sys import float_info


def system_efficiency(preferred_s: float, transmission_s: float, computing_s: float) -> float:
    """ResEffi: SE = T / (T^tr + T^co), the delays being those of the unit (smallest) subnetwork."""
    return preferred_s / (transmission_s + computing_s)


def training_efficiency(batches: int, mean_square_fisher: float) -> float:
    """TraEffi: TE = |B| sqrt( (1/|B|) sum_{k in B} sum_{d in D} FI_{r-d}(k)^2 / |D| ).

    `batches` is |B|, the mini-batches trained on in a round; `mean_square_fisher` is the mean of FI^2 over the
    window and the mini-batches measured, so measuring fewer of them changes neither factor in expectation.
    """
    return batches * sqrt(mean_square_fisher)


def utility(training: float, system: float, beta: float) -> float:
    """eq:SSUtilFunc: Util = TE x SE^beta; what floating point cannot hold counts as the most that it can."""
    try:
        return min(float(training * system**beta), float_info.max)
    except OverflowError:
        return float_info.max
