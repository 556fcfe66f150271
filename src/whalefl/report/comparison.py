"""Several methods side by side: seeds paired, runs that never reached the target counted as what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import mean, median, stdev
from typing import Literal

from whalefl.report.summary import RunSummary, mean_known


@dataclass(frozen=True)
class Bounded:
    """A number that may only be a bound: `sign` is "" (exact), "≥", "≤" or "~" (bounds on both sides)."""

    value: float
    sign: str = ""

    def text(self, pattern: str) -> str:
        return f"{self.sign}{format(self.value, pattern)}"


@dataclass(frozen=True)
class Row:
    """One method over all seeds. Times, rounds, energy and bytes are medians; where too few seeds reached, bounds."""

    label: str
    has_target: bool
    seeds: int
    reached: int
    time_s: Bounded
    rounds: Bounded
    speedup: Bounded | None
    speedup_range: tuple[float, float] | None
    pairs: int
    final_accuracy: float
    spread: float
    mean_share: float | None
    energy_j: Bounded
    bytes_sent: Bounded


def compare(runs: Mapping[str, Mapping[int, RunSummary]]) -> list[Row]:
    """One row for each label; `runs` maps label -> seed -> summary, and the first label is the reference."""
    reference = next(iter(runs.values()))
    return [_row(label, by_seed, reference) for label, by_seed in runs.items()]


def _row(label: str, by_seed: Mapping[int, RunSummary], reference: Mapping[int, RunSummary]) -> Row:
    runs = list(by_seed.values())
    reached = [run for run in runs if run.reached_s is not None]
    ratios = [paired_ratio(reference[seed], run) for seed, run in by_seed.items() if seed in reference]
    known = [ratio for ratio in ratios if ratio is not None]
    accuracies, censored = [run.final_accuracy for run in runs], [run.censored for run in runs]
    return Row(
        label=label,
        has_target=all(run.has_target for run in runs),
        seeds=len(runs),
        reached=len(reached),
        time_s=median_spent(runs),
        rounds=median_spent(runs, "rounds"),
        speedup=geometric_mean(known),
        pairs=len(known),
        speedup_range=(min(r.value for r in known), max(r.value for r in known)) if known else None,
        final_accuracy=mean(accuracies),
        spread=stdev(accuracies) if len(accuracies) > 1 else 0.0,
        mean_share=mean_known(run.mean_share for run in runs),
        energy_j=_median([run.energy_j for run in runs], censored),
        bytes_sent=_median([float(run.bytes_sent) for run in runs], censored),
    )


Unit = Literal["seconds", "rounds", "crossings"]
"""In what the way to the target is counted: virtual seconds or rounds, or seconds to the first crossing."""


def paired_ratio(reference: RunSummary, run: RunSummary, unit: Unit = "seconds") -> Bounded | None:
    """How many times sooner `run` reached the target than `reference` did with the same seed.

    There is no ratio in rounds where one diverged: its time is bounded by the horizon, its rounds by nothing.
    """
    if unit == "rounds" and (reference.diverged or run.diverged):
        return None
    theirs, ours = (_reached(one, unit) is not None for one in (reference, run))
    if not theirs and not ours:
        return None
    return Bounded(spent(reference, unit) / spent(run, unit), "" if theirs and ours else "≤" if theirs else "≥")


def spent(run: RunSummary, unit: Unit = "seconds") -> float:
    """What it took to the target; for the whole run if it was not reached."""
    reached = _reached(run, unit)
    if reached is not None:
        return reached
    return run.rounds if unit == "rounds" else run.time_s


def median_spent(runs: Sequence[RunSummary], unit: Unit = "seconds") -> Bounded:
    """What it took to the target, in the median of all runs."""
    return _median([spent(run, unit) for run in runs], [run.has_target and _reached(run, unit) is None for run in runs])


def _median(values: Sequence[float], censored: Sequence[bool]) -> Bounded:
    """The median; a bound if it would be another one had the runs that never reached the target gone on."""
    at_least = median(values)
    at_most = median(inf if more else value for value, more in zip(values, censored, strict=True))
    return Bounded(at_least, "" if at_least == at_most else "≥")


def _reached(run: RunSummary, unit: Unit) -> float | None:
    return {"seconds": run.reached_s, "rounds": run.reached_round, "crossings": run.crossed_s}[unit]


def geometric_mean(ratios: Sequence[Bounded]) -> Bounded | None:
    if not ratios:
        return None
    signs = {ratio.sign for ratio in ratios} - {""}
    sign = "" if not signs else signs.pop() if len(signs) == 1 else "~"
    return Bounded(exp(mean(log(ratio.value) for ratio in ratios)), sign)
