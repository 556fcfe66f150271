"""The quantities of the convergence theorem as a table: how much of the model every round reaches, and by how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from whalefl.experiments.cells import Cell
from whalefl.experiments.curves import is_nested, regions
from whalefl.experiments.reading import summaries
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.tables import NONE, NOT_RUN, hours_spent, percent
from whalefl.markdown import grid
from whalefl.report.statistics import mean_of


@dataclass(frozen=True)
class CoverageTable:
    """Means over rounds and seeds for each method, beside how soon it got there."""

    title: str
    cells: tuple[Cell, ...]

    def markdown(self, store: Store) -> str:
        header = ("method", "regions a round", "|M*|", "untouched", "rounds since trained", "hours", "final accuracy")
        return f"### {self.title}\n\n" + grid([header, *(self._row(store, cell) for cell in self.cells)])

    def _row(self, store: Store, cell: Cell) -> tuple[str, ...]:
        runs, found = list(store.runs(cell).values()), summaries(store, cell)
        finals = mean_of([run.final_accuracy for run in found.values()])
        if finals is None:
            return (cell.label, NOT_RUN, *[""] * 5)
        return (cell.label, *_covered(runs), hours_spent(found).text(".2f"), percent(finals))


def _covered(runs: Sequence[Finished]) -> tuple[str, ...]:
    if not runs:  # all broke off in their first round
        return (NONE,) * 4
    return (
        f"{mean_regions(runs):.2f}" if is_nested(runs[0]) else NONE,
        f"{mean_coverage(runs, 'least'):.2f}",
        f"{100 * mean_coverage(runs, 'untouched'):.1f} %",
        f"{mean_coverage(runs, 'mean_age'):.1f}",
    )


def mean_regions(runs: Sequence[Finished]) -> float:
    """|S_r|, mean over rounds and seeds."""
    return mean(mean(regions(run)) for run in runs)


def mean_coverage(runs: Sequence[Finished], key: str, first: int = 1) -> float:
    """A quantity of the coverage, mean over seeds and over rounds from the `first` on."""
    return float(mean(mean(_from(first, run.compact["coverage"], key)) for run in runs))


def _from(first: int, coverage: Mapping[str, Sequence[float]], key: str) -> Sequence[float]:
    """The values of the stretches that begin in that round or later; of a run that ended before, the last one."""
    begins = [1, *(end + 1 for end in coverage["round"])]
    later = [value for begin, value in zip(begins, coverage[key], strict=False) if begin >= first]
    return later or coverage[key][-1:]
