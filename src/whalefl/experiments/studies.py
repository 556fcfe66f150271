"""A study: a table or figure as one value, the cells it needs and what is shown of them; and what studies share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from matplotlib.figure import Figure

from whalefl.experiments.cells import Cell
from whalefl.experiments.paper import SPEEDUP_OVER_PEER
from whalefl.experiments.protocol import CIFAR10, LABELS, PAIRS, SEVEN, TASKS, Setting
from whalefl.experiments.reading import main_cell
from whalefl.experiments.store import Store
from whalefl.experiments.tables import Pair


class View(Protocol):
    def markdown(self, store: Store) -> str: ...


class Picture(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def caption(self) -> str: ...

    def draw(self, store: Store) -> Figure | None: ...


@dataclass(frozen=True)
class Study:
    """A table or figure: the cells it needs, and what is shown of them. `later` are cells that follow from results."""

    name: str
    title: str
    text: str
    cells: tuple[Cell, ...]
    tables: tuple[View, ...]
    pictures: tuple[Picture, ...] = ()
    later: Callable[[Store], tuple[Cell, ...]] = lambda _store: ()


def cells_of(setting: Setting, methods: Iterable[str] = SEVEN) -> tuple[Cell, ...]:
    return tuple(main_cell(setting, method) for method in methods)


def cifar_cells() -> tuple[Cell, ...]:
    """On CIFAR-10 the rolling and random methods come after everything else of the task."""
    first = ("fedavg", "heterofl", "whale")
    return tuple(main_cell(CIFAR10, m) if m in first else replace(main_cell(CIFAR10, m), tier=7) for m in SEVEN)


def task_cells() -> tuple[Cell, ...]:
    return tuple(c for s in TASKS for c in (cifar_cells() if s is CIFAR10 else cells_of(s)))


def peer_pair(setting: Setting, whale: str, peer: str, paper: float | None = None) -> Pair:
    return Pair(f"{LABELS[whale]} vs {LABELS[peer]}", main_cell(setting, whale), main_cell(setting, peer), paper)


def fedavg_pair(setting: Setting, method: str, paper: float | None = None) -> Pair:
    name = f"{LABELS[method]} vs FedAvg"
    return Pair(name, main_cell(setting, method), main_cell(setting, "fedavg"), paper)


def peer_pairs(settings: Iterable[Setting]) -> tuple[Pair, ...]:
    return tuple(
        peer_pair(s, whale, peer, SPEEDUP_OVER_PEER[s.task][whale] if s in TASKS else None)
        for s in settings
        for whale, peer in PAIRS
    )
