"""When a claim counts as confirmed: stated rules over runs, never a judgement written by hand.

A number is on one side of a bound when its whole 95 % interval is. One seed or two decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import mean

from whalefl.experiments.cells import Cell
from whalefl.experiments.reading import metric_of, speedup_over, summaries
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.tables import NOT_RUN, gain_of, speedup_text
from whalefl.experiments.theorem import mean_coverage
from whalefl.experiments.trajectories import correlation, rank_correlation, restlessness, shares_by_third, unsteadiness
from whalefl.report.statistics import Interval, Mean, Speedup, mean_of
from whalefl.report.summary import evaluated

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "not decidable"
TIED = "by construction"
"""Of two quantities of which one is computed from the other."""

MARGIN = 0.01
"""An accuracy counts as not sacrificed while it is at most so much lower."""


@dataclass(frozen=True)
class Finding:
    """What the runs of so many `seeds` say of a claim.

    Of a speed-up also the ratio of first crossings, `by_crossing`, and what it would decide (`otherwise`); it does not.
    """

    figure: str
    verdict: str
    seeds: int = 0
    by_crossing: str = ""
    otherwise: str = ""

    @property
    def depends(self) -> bool:
        """Whether first crossings would decide otherwise."""
        return self.otherwise not in ("", self.verdict)


MISSING = Finding(NOT_RUN, NOT_RUN)


def side(interval: Interval | None, bound: float) -> str:
    """Confirmed if the interval lies above the bound, refuted if below."""
    if interval is None:
        return UNDECIDED
    return CONFIRMED if interval[0] > bound else REFUTED if interval[1] < bound else UNDECIDED


def speedup_side(found: Speedup) -> str:
    """Above 1 is confirmed; a lower bound cannot refute, an upper bound cannot confirm, and both decide nothing.

    Nor do pairs chosen by their outcome: where some seeds have none, since neither run reached the target.
    """
    if found.value is None or found.pairs < found.seeds:
        return UNDECIDED
    verdict = side(found.interval, 1.0)
    allowed = {"": (CONFIRMED, REFUTED), "≥": (CONFIRMED,), "≤": (REFUTED,)}.get(found.value.sign, ())
    return verdict if verdict in allowed else UNDECIDED


def both(first: str, second: str) -> str:
    """A claim of two parts is confirmed if both are, and refuted if one is."""
    if REFUTED in (first, second):
        return REFUTED
    return CONFIRMED if first == second == CONFIRMED else UNDECIDED


@dataclass(frozen=True)
class Sooner:
    """The cell reaches the target sooner than the reference; its setting's target, unless another is given."""

    cell: Cell
    reference: Cell
    paper: float | None = None
    target: float | None = None

    def find(self, store: Store) -> Finding:
        found, crossings = (
            speedup_over(store, self.reference, self.cell, self.target, unit) for unit in ("seconds", "crossings")
        )
        if found is None or crossings is None:
            return MISSING
        return Finding(
            speedup_text(found) + self._beside(found),
            speedup_side(found),
            found.seeds,
            speedup_text(crossings),
            speedup_side(crossings),
        )

    def _beside(self, found: Speedup) -> str:
        if self.paper is None or found.interval is None or found.value is None or found.value.sign:
            return ""
        if found.pairs < found.seeds:
            return f", of {found.pairs} of {found.seeds} seeds"
        low, high = found.interval
        return ", less" if high < self.paper else ", more" if low > self.paper else ", compatible"


@dataclass(frozen=True)
class Better:
    """The cell's final accuracy is higher than the reference's, seeds paired; or lower by no more than `margin`."""

    cell: Cell
    reference: Cell
    margin: float = 0.0

    def find(self, store: Store) -> Finding:
        return _above(gain_of(store, self.reference, self.cell), -self.margin)


@dataclass(frozen=True)
class Worse:
    """The cell's final accuracy is lower than the reference's, seeds paired."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        return _below(gain_of(store, self.reference, self.cell))


@dataclass(frozen=True)
class SoonerAndNoWorse:
    """Sooner at the target, and the final accuracy not sacrificed."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        sooner = Sooner(self.cell, self.reference).find(store)
        better = Better(self.cell, self.reference, MARGIN).find(store)
        if MISSING in (sooner, better):
            return MISSING
        verdict, otherwise = (both(side, better.verdict) for side in (sooner.verdict, sooner.otherwise))
        return Finding(f"{sooner.figure}; {better.figure}", verdict, sooner.seeds, sooner.by_crossing, otherwise)


@dataclass(frozen=True)
class AheadEarly:
    """The cell's accuracy, averaged over the first tenth of the horizon, is higher than the reference's."""

    cell: Cell
    reference: Cell
    share: float = 0.1

    def find(self, store: Store) -> Finding:
        metric, until_s = metric_of(store, self.cell.setting), self.cell.setting.horizon_s * self.share
        return _above(_more(store, self.cell, self.reference, lambda run: early_accuracy(run, until_s, metric)))


def early_accuracy(run: Finished, until_s: float, metric: str) -> float:
    """The accuracy up to a time, averaged over time: each evaluation holds until the next one."""
    points, total, last_s, held = evaluated(run.records(metric)), 0.0, 0.0, 0.0
    for point in points:
        end = min(point["time_s"], until_s)
        total += held * (end - last_s)
        last_s, held = end, point["accuracy"]
        if point["time_s"] >= until_s:
            break
    return total / last_s if last_s > 0 else 0.0


@dataclass(frozen=True)
class MoreInTheMiddle:
    """More is trained in the middle third of the virtual time than in the first (`than` 0) or in the last (2)."""

    cell: Cell
    than: int

    def find(self, store: Store) -> Finding:
        thirds = [shares_by_third(run) for run in store.runs(self.cell).values()]
        return _above(mean_of([(own[1] - own[self.than]) / 100 for own in thirds]))


@dataclass(frozen=True)
class SmallLargeSmall:
    """Both."""

    cell: Cell

    def find(self, store: Store) -> Finding:
        rise, fall = (MoreInTheMiddle(self.cell, than).find(store) for than in (0, 2))
        if MISSING in (rise, fall):
            return MISSING
        thirds = [shares_by_third(run) for run in store.runs(self.cell).values()]
        text = " / ".join(f"{mean(part):.0f} %" for part in zip(*thirds, strict=True))
        return Finding(f"share trained {text}", both(rise.verdict, fall.verdict), rise.seeds)


@dataclass(frozen=True)
class FollowsFisher:
    """Size and Fisher information go up and down together (rank correlation over time, all devices).

    The trace over the slice grows with the slice, so that the two are tied whatever devices do.
    """

    cell: Cell
    column: str

    def find(self, store: Store) -> Finding:
        runs = list(store.runs(self.cell).values())
        found = correlation(runs, None, self.column)
        if found is None:
            return MISSING if not runs else Finding("size never changes", UNDECIDED)
        verdict = TIED if self.column == "all" else side(found.interval, 0.0)
        return Finding(f"{found.value:+.2f}{_ends(found.interval, '+.2f')}", verdict, found.seeds)


@dataclass(frozen=True)
class Unsteadier:
    """The cell's accuracy moves more from round to round than the reference's, in the second half of the run."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        metric = metric_of(store, self.cell.setting)
        return _above(_more(store, self.cell, self.reference, lambda run: unsteadiness(run, metric)))


@dataclass(frozen=True)
class Restless:
    """The cell's devices change their sizes by more from round to round than the reference's."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        return _above(_more(store, self.cell, self.reference, restlessness))


def _more(store: Store, cell: Cell, reference: Cell, measure: Callable[[Finished], float | None]) -> Mean | None:
    """By how much a measure of a cell's runs is above that of the reference's, seeds paired."""
    ours, theirs = ({seed: measure(run) for seed, run in store.runs(one).items()} for one in (cell, reference))
    pairs = [(value, theirs.get(seed)) for seed, value in ours.items()]
    return mean_of([here - there for here, there in pairs if here is not None and there is not None])


@dataclass(frozen=True)
class Smaller:
    """The cell's devices train less of the model than the reference's, mean over devices and rounds, seeds paired."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        return _below(_more_trained(store, self.cell, self.reference))


@dataclass(frozen=True)
class Larger:
    """The opposite."""

    cell: Cell
    reference: Cell

    def find(self, store: Store) -> Finding:
        return _above(_more_trained(store, self.cell, self.reference))


def _more_trained(store: Store, cell: Cell, reference: Cell) -> Mean | None:
    """How much more of the model a cell's devices train."""
    ours, theirs = (summaries(store, one) for one in (cell, reference))
    shares = [(ours[seed].mean_share, theirs[seed].mean_share) for seed in ours if seed in theirs]
    return mean_of([own - other for own, other in shares if own is not None and other is not None])


@dataclass(frozen=True)
class LongerThan:
    """A method takes longer to its target (or to one `target`) in one setting than in another, seeds paired."""

    cell: Cell
    reference: Cell
    target: float | None = None

    def find(self, store: Store) -> Finding:
        return Sooner(self.reference, self.cell, target=self.target).find(store)


WARM_UP = 2
"""In so many rounds adaptive devices have nothing to choose by yet, and all train the smallest slice."""

ALIKE = 0.01
"""Methods that leave shares of the model untouched which differ by less are not told apart by them."""


@dataclass(frozen=True)
class FasterWhereMore:
    """Over methods, the more of a quantity of the coverage, the fewer rounds to the target: a rank correlation.

    It is taken for every seed over the methods that have it, without the rounds in which adaptive methods warm up, and
    its sign is turned for `untouched`, so that above 0 is what the theorem suggests. Runs that never reached the target
    count as slower than all that did; seeds of which a run diverged do not count.
    """

    cells: tuple[Cell, ...]
    key: str

    def find(self, store: Store) -> Finding:
        runs = [store.runs(cell) for cell in self.cells]
        found = [summaries(store, cell) for cell in self.cells]
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs)))
        sign = 1 if self.key == "untouched" else -1
        values, spreads = [], []
        for seed in seeds:
            if any(by_seed[seed].diverged for by_seed in runs):
                continue
            amounts = [mean_coverage([by_seed[seed]], self.key, WARM_UP + 1) for by_seed in runs]
            rounds = [by_seed[seed].reached_round for by_seed in found]
            value = rank_correlation(amounts, [inf if number is None else number for number in rounds])
            if value is not None:
                values.append(sign * value)
                spreads.append(max(amounts) - min(amounts))
        total = mean_of(values)
        if total is None:
            return MISSING
        figure = f"{total.value:+.2f}{_ends(total.interval, '+.2f')}"
        if self.key == "untouched" and max(spreads) < ALIKE:
            text = f"{figure}, but methods differ by {100 * max(spreads):.2f} % of the model"
            return Finding(text, UNDECIDED, total.seeds)
        return Finding(figure, side(total.interval, 0.0), total.seeds)


def _above(gain: Mean | None, bound: float = 0.0) -> Finding:
    """That a gain is above a bound."""
    return MISSING if gain is None else Finding(_points(gain), side(gain.interval, bound), gain.seeds)


def _below(gain: Mean | None) -> Finding:
    """That a gain is a loss."""
    if gain is None:
        return MISSING
    loss = None if gain.interval is None else (-gain.interval[1], -gain.interval[0])
    return Finding(_points(gain), side(loss, 0.0), gain.seeds)


def _points(found: Mean) -> str:
    ends = None if found.interval is None else (100 * found.interval[0], 100 * found.interval[1])
    return f"{100 * found.value:+.2f} points{_ends(ends, '+.2f')}"


def _ends(interval: Interval | None, pattern: str) -> str:
    return "" if interval is None else f" [{format(interval[0], pattern)}, {format(interval[1], pattern)}]"
