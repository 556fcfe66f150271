"""Which runs some tables need: each once, the most worthwhile first, with what it will probably take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from whalefl.config import Device, Experiment
from whalefl.experiments.cells import Cell, Run, run_of
from whalefl.experiments.costs import Costs
from whalefl.experiments.store import Store

_TOGETHER = 3
"""So many seeds of a cell come at once; the next ones come a tier later, after the first ones of other cells."""


@dataclass(frozen=True)
class Entry:
    """A run in a plan: the labels under which tables ask for it, its predicted seconds, and whether it is finished."""

    run: Run
    labels: tuple[str, ...]
    seconds: float
    done: bool


@dataclass(frozen=True)
class Request:
    """What a user asks for: some tasks or methods only, the first so many seeds only, and where to compute."""

    tasks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: int | None = None
    device: Device = "cpu"
    data_dir: str | None = None

    def place(self, experiment: Experiment) -> Experiment:
        """The experiment where it is to be computed."""
        return replace(experiment, device=self.device, data_dir=self.data_dir)


def plan(cells: Iterable[Cell], store: Store, costs: Costs, request: Request) -> list[Entry]:
    """The runs of these cells in the order in which they should be made."""
    ordered = sorted(_wanted(cells, request), key=lambda wanted: wanted[0])
    found: dict[str, tuple[Run, list[str]]] = {}
    for _, run, label in ordered:
        for one in (*_sources(run), run):
            labels = found.setdefault(one.identity, (one, []))[1]
            if one is run and label not in labels:
                labels.append(label)
    return [
        Entry(run, tuple(labels), costs.seconds(request.place(run.experiment)), store.path(run).exists())
        for run, labels in found.values()
    ]


def _wanted(cells: Iterable[Cell], request: Request) -> Iterator[tuple[tuple[int, int, int], Run, str]]:
    for position, cell in enumerate(cells):
        if request.tasks is not None and cell.setting.task not in request.tasks:
            continue
        if request.methods is not None and cell.method not in request.methods:
            continue
        for number, seed in enumerate(cell.all_seeds[: request.seeds]):
            rank = (cell.rank + number // _TOGETHER, number, position)
            yield rank, run_of(cell, seed), f"{cell.setting.name}: {cell.label}"


def _sources(run: Run) -> Iterator[Run]:
    """The runs that must be finished before this one, the earliest first."""
    if run.source is not None:
        yield from _sources(run.source)
        yield run.source


def missing(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if not entry.done]
