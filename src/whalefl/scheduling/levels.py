"""From a utility to a level: normalise, quantise, cap."""

from __future__ import annotations

from math import floor


def normalised_utility(utility: float, threshold: float) -> float:
    """eq:linear: U_n = Util / U_th while Util <= U_th, else 1."""
    return utility / threshold if utility <= threshold else 1.0


def quantised_level(normalised: float, levels: int) -> int:
    """eq:quantization: level p if U_n lies in [(P-p)/P, (P-p+1)/P); level 1 from (P-1)/P on."""
    # P U_n is compared with whole numbers, so a value that is on an edge but for rounding must count as on it.
    return max(1, levels - floor(normalised * levels + 1e-12))


def capped_level(level: int, widest: int) -> int:
    """eq:min_max_W: the chosen slice, or the largest one the device supports if that is smaller."""
    return max(level, widest)
