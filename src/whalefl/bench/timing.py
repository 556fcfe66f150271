"""Timing that survives a machine whose speed drifts: variants take turns, and ratios are taken turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Timing:
    """The seconds of one variant: of its first turn, in which it sets itself up, and of every later one."""

    first_s: float
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.seconds)


def alternate(
    turns: Mapping[str, Callable[[], object]],
    repeats: int,
    begin: Callable[[int], object] = lambda number: None,
) -> dict[str, Timing]:
    """Time `repeats` + 1 turns of each, one after the other (ABCABC...); `begin` hears the number of each repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(repeats + 1):
        begin(number)
        for name, turn in turns.items():
            start = perf_counter()
            turn()
            seconds[name].append(perf_counter() - start)
    return {name: Timing(first, tuple(rest)) for name, (first, *rest) in seconds.items()}


def ratio(reference: Sequence[float], own: Sequence[float]) -> float:
    """How many times faster than the reference: the median over repeats, each against the same repeat's reference."""
    return median(theirs / ours for theirs, ours in zip(reference, own, strict=True))
