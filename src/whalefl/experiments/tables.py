"""Tables as values: which cells they compare, against which of the paper's numbers, and their Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whalefl.experiments.cells import Cell
from whalefl.experiments.protocol import Setting
from whalefl.experiments.reading import Summaries, second_target, speedup_over, summaries
from whalefl.experiments.store import Store
from whalefl.markdown import grid
from whalefl.report.comparison import Bounded, Unit, median_spent
from whalefl.report.statistics import Interval, Mean, Speedup, mean_of
from whalefl.report.summary import mean_known

NOT_RUN = "not run yet"
NONE = "-"


@dataclass(frozen=True)
class Hours:
    """Time to a target of several methods in one setting, and how many times sooner than the first of them.

    `second` reads the same runs against 95 % of what FedAvg reaches on the tuning seeds.
    """

    setting: Setting
    cells: tuple[Cell, ...]
    paper_hours: Mapping[str, float] = field(default_factory=dict)
    paper_speedups: Mapping[str, float] = field(default_factory=dict)
    second: bool = False

    def markdown(self, store: Store) -> str:
        target = second_target(store, self.setting) if self.second else self.setting.target
        if target is None:
            return f"### {self.setting.name}: second target\n\nThe tuning runs that it rests on are not run yet.\n"
        what = " (95 % of FedAvg's final accuracy on the tuning seeds)" if self.second else ""
        title = f"### {self.setting.name}: hours to {100 * target:.1f} %{what}\n"
        sooner = f"speed-up over {self.cells[0].label} [95 %]"
        header = (
            "method",
            *_beside(bool(self.paper_hours), "paper (h)", "ours (h)", "difference (h)"),
            *("reached", "rounds", "first crossing (h)"),
            *_beside(bool(self.paper_speedups), "paper", sooner, "difference"),
            *("by first crossing", "in rounds", "share trained", "round (s)"),
        )
        return title + "\n" + grid([header, *(self._row(store, cell, target) for cell in self.cells)])

    def _row(self, store: Store, cell: Cell, target: float) -> tuple[str, ...]:
        runs = summaries(store, cell, target)
        hours = hours_spent(runs) if runs else None
        ratio = speedup_over(store, self.cells[0], cell, target)
        paper_h, paper_x = (numbers.get(cell.method) for numbers in (self.paper_hours, self.paper_speedups))
        times = _beside(
            bool(self.paper_hours),
            _number(paper_h, "{:.2f}"),
            NOT_RUN if hours is None else hours.text(".2f"),
            signed(_gap(hours, paper_h), "+.2f"),
        )
        factors = _beside(
            bool(self.paper_speedups),
            _number(paper_x, "{:.2f}x"),
            speedup_text(ratio) if runs else "",
            signed(_gap(None if ratio is None else ratio.value, paper_x), "+.2f"),
        )
        if not runs:
            return (cell.label, *times, *[""] * 3, *factors, *[""] * 4)
        return (
            cell.label + _diverged(store, cell),
            *times,
            _reached(runs, cell),
            median_spent(list(runs.values()), "rounds").text(".0f"),
            crossing(runs),
            *factors,
            speedup_text(speedup_over(store, self.cells[0], cell, target, "crossings")),
            in_rounds(speedup_over(store, self.cells[0], cell, target, "rounds")),
            share_text(mean_known(run.mean_share for run in runs.values())),
            _number(mean_known(run.round_s for run in runs.values()), "{:.1f}"),
        )


@dataclass(frozen=True)
class Pair:
    """A method, the one it is compared with, and how many times sooner the paper says it is."""

    name: str
    cell: Cell
    reference: Cell
    paper: float | None = None


@dataclass(frozen=True)
class Pairs:
    """Speed-ups of pairs, over tasks or weathers."""

    title: str
    pairs: tuple[Pair, ...]

    def markdown(self, store: Store) -> str:
        header = (
            *("setting", "comparison", "paper", "ours [95 %]", "difference"),
            *("by first crossing", "in rounds", "reached"),
        )
        return f"### {self.title}\n\n" + grid([header, *(self._row(store, pair) for pair in self.pairs)])

    def _row(self, store: Store, pair: Pair) -> tuple[str, ...]:
        paper = NONE if pair.paper is None else f"{pair.paper:.2f}x"
        ratio = speedup_over(store, pair.reference, pair.cell)
        if ratio is None:
            return (pair.cell.setting.name, pair.name, paper, NOT_RUN, "", "", "", "")
        return (
            pair.cell.setting.name,
            pair.name,
            paper,
            speedup_text(ratio),
            signed(_gap(ratio.value, pair.paper), "+.2f"),
            speedup_text(speedup_over(store, pair.reference, pair.cell, unit="crossings")),
            in_rounds(speedup_over(store, pair.reference, pair.cell, unit="rounds")),
            " / ".join(_reached(summaries(store, cell), cell) for cell in (pair.cell, pair.reference)),
        )


@dataclass(frozen=True)
class Finals:
    """Final accuracies, and what a method gains over another with the same seeds."""

    title: str
    cells: tuple[tuple[Cell, float | None], ...]
    gains: tuple[Pair, ...] = ()

    def markdown(self, store: Store) -> str:
        rows = [("setting", "method", "paper", "ours [95 %]", "difference", "seeds")]
        for cell, paper in self.cells:
            found = final_of(store, cell)
            rows.append(
                (
                    cell.setting.name,
                    cell.label,
                    NONE if paper is None else f"{100 * paper:.2f} %",
                    NOT_RUN if found is None else percent(found),
                    "" if found is None or paper is None else f"{100 * (found.value - paper):+.1f}",
                    "" if found is None else str(found.seeds),
                )
            )
        return f"### {self.title}\n\n" + grid(rows) + self._gains(store)

    def _gains(self, store: Store) -> str:
        if not self.gains:
            return ""
        rows = [("setting", "comparison", "paper (points)", "ours (points) [95 %]", "difference", "pairs")]
        for pair in self.gains:
            found = gain_of(store, pair.reference, pair.cell)
            paper = None if pair.paper is None else 100 * pair.paper
            rows.append(
                (
                    pair.cell.setting.name,
                    pair.name,
                    NONE if paper is None else f"{paper:+.2f}",
                    NOT_RUN if found is None else f"{100 * found.value:+.2f}{_bracket(found.interval, 100, '+.2f')}",
                    "" if found is None or paper is None else f"{100 * found.value - paper:+.2f}",
                    "" if found is None else str(found.seeds),
                )
            )
        return "\n" + grid(rows)


def final_of(store: Store, cell: Cell) -> Mean | None:
    """The mean final accuracy of a cell."""
    return mean_of([run.final_accuracy for run in summaries(store, cell).values()])


def gain_of(store: Store, reference: Cell, cell: Cell) -> Mean | None:
    """The mean difference of final accuracies, seeds paired."""
    below, above = summaries(store, reference), summaries(store, cell)
    return mean_of([above[seed].final_accuracy - below[seed].final_accuracy for seed in above if seed in below])


def hours_spent(runs: Summaries, unit: Unit = "seconds") -> Bounded:
    """The median hours to the target, or to its first crossing."""
    found = median_spent(list(runs.values()), unit)
    return Bounded(found.value / 3600, found.sign)


def speedup_text(found: Speedup | None) -> str:
    """1.43x [1.30, 1.58]; where some seeds have no ratio, how many have one."""
    if found is None:
        return NOT_RUN
    if found.value is None:
        return f"neither reached ({seeds_text(found.seeds)})"
    pairs = f" ({found.pairs} of {found.seeds} pairs)" if found.pairs < found.seeds else ""
    return found.value.text(".2f") + "x" + _bracket(found.interval, 1, ".2f") + pairs


def in_rounds(found: Speedup | None) -> str:
    """The same in rounds, of which there is no ratio where neither reached, nor where one diverged."""
    return NONE if found is not None and found.value is None else speedup_text(found)


def percent(found: Mean) -> str:
    return f"{100 * found.value:.2f} %{_bracket(found.interval, 100, '.2f')}"


def signed(gap: Bounded | None, pattern: str) -> str:
    return NONE if gap is None else gap.text(pattern)


def _gap(ours: Bounded | None, paper: float | None) -> Bounded | None:
    return None if ours is None or paper is None else Bounded(ours.value - paper, ours.sign)


def _bracket(interval: Interval | None, scale: float, pattern: str) -> str:
    if interval is None:
        return ""
    low, high = (format(scale * end, pattern) for end in interval)
    return f" [{low}, {high}]"


def _beside(known: bool, paper: str, ours: str, difference: str) -> tuple[str, ...]:
    """The paper's number, ours and the difference; ours alone in a table for which the paper has no numbers."""
    return (paper, ours, difference) if known else (ours,)


def _number(value: float | None, pattern: str) -> str:
    return NONE if value is None else pattern.format(value)


def share_text(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.0f} %"


def _reached(runs: Summaries, cell: Cell) -> str:
    reached = sum(run.reached_s is not None for run in runs.values())
    missing = len(cell.all_seeds) - len(runs)
    return f"{reached} of {len(runs)}" + (f" ({seeds_text(missing)} not run)" if missing else "")


def seeds_text(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"


def crossing(runs: Summaries) -> str:
    """The median hours of the first single evaluation at or above the target, and how many runs had one if not all."""
    crossed = sum(run.crossed_s is not None for run in runs.values())
    return hours_spent(runs, "crossings").text(".2f") + (f" ({crossed} of {len(runs)})" if crossed < len(runs) else "")


def _diverged(store: Store, cell: Cell) -> str:
    count = sum(run.diverged for run in store.ended(cell).values())
    return f" ({count} diverged)" if count else ""
