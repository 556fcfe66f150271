"""The figures of the reproduction that the README shows."""

from __future__ import annotations

from pathlib import Path

from whalefl.experiments.paper import FINAL_ACCURACY, SPEEDUP_OVER_FEDAVG_BY_SIGMA
from whalefl.experiments.protocol import (
    CIFAR10,
    HAR,
    LABELS,
    MNIST,
    MNIST_5,
    MNIST_10,
    PAIRS,
    SEVEN,
    WIKITEXT2,
    Setting,
)
from whalefl.experiments.reading import main_cell, speedup_over, summaries
from whalefl.experiments.sections import write_section
from whalefl.experiments.store import Store
from whalefl.experiments.tables import (
    NOT_RUN,
    crossing,
    final_of,
    gain_of,
    hours_spent,
    percent,
    seeds_text,
    speedup_text,
)
from whalefl.experiments.verdicts import CONFIRMED, REFUTED, Sooner
from whalefl.markdown import grid
from whalefl.report.statistics import FEWEST

PLACES = {
    "MNIST, 2 classes a device": MNIST,
    "5 classes": MNIST_5,
    "10 classes": MNIST_10,
    "HAR": HAR,
    "CIFAR-10": CIFAR10,
    "WikiText-2": WIKITEXT2,
}
COMPARED = (("whale", "fedavg"), *PAIRS)

OTHERWISE = " †"
"""Marks what first crossings would answer otherwise."""


def headline(store: Store) -> str:
    """What the main claim comes to everywhere, and all seven methods on CNN@MNIST: the paper's figures and ours."""
    return f"{answers(store)}\n{methods(store)}"


def answers(store: Store) -> str:
    """Whether the adaptive methods are sooner, and by how many points WHALE ends above FedAvg."""
    return grid(
        [
            ("at the target", *PLACES),
            *(
                (
                    f"{LABELS[method]} sooner than {LABELS[other]}?",
                    *(_answer(store, s, method, other) for s in PLACES.values()),
                )
                for method, other in COMPARED
            ),
            ("WHALE's final accuracy less FedAvg's, points", *(_gain(store, s) for s in PLACES.values())),
        ]
    )


def _answer(store: Store, setting: Setting, method: str, other: str) -> str:
    cell, reference = main_cell(setting, method), main_cell(setting, other)
    found, finding = speedup_over(store, reference, cell), Sooner(cell, reference).find(store)
    if found is None:
        return NOT_RUN
    if found.value is None:
        return "neither gets there" + _few(found.seeds)
    answer = {CONFIRMED: "**yes**", REFUTED: "no"}.get(finding.verdict, "open")
    few = f" ({found.pairs} of {found.seeds} seeds)" if found.pairs < found.seeds else _few(found.seeds)
    return f"{answer}, {found.value.text('.2f')}x{few}" + (OTHERWISE if finding.depends else "")


def _gain(store: Store, setting: Setting) -> str:
    gain = gain_of(store, main_cell(setting, "fedavg"), main_cell(setting, "whale"))
    return NOT_RUN if gain is None else f"{100 * gain.value:+.1f}{_few(gain.seeds)}"


def _few(seeds: int) -> str:
    return f" ({seeds_text(seeds)})" if seeds < FEWEST else ""


def methods(store: Store) -> str:
    seeds = min(len(summaries(store, main_cell(MNIST, method))) for method in SEVEN)
    header = (
        "method",
        f"virtual hours to {100 * MNIST.target:.0f} %",
        "first crossing (h)",
        "speed-up over FedAvg [95 %]",
        "by first crossing",
        "the paper's",
        "final accuracy [95 %]",
        "the paper's",
    )
    return f"CNN@MNIST, two classes a device, {seeds} of {MNIST.seeds} seeds:\n\n" + grid(
        [header, *(_row(store, method) for method in SEVEN)]
    )


def _row(store: Store, method: str) -> tuple[str, ...]:
    cell, fedavg = main_cell(MNIST, method), main_cell(MNIST, "fedavg")
    runs, final = summaries(store, cell), final_of(store, cell)
    return (
        cell.label,
        hours_spent(runs).text(".2f") if runs else NOT_RUN,
        crossing(runs) if runs else "",
        speedup_text(speedup_over(store, fedavg, cell)) if runs else "",
        speedup_text(speedup_over(store, fedavg, cell, unit="crossings")) if runs else "",
        f"{SPEEDUP_OVER_FEDAVG_BY_SIGMA[MNIST.sigma or 0][method]:.2f}x",
        "" if final is None else percent(final),
        f"{100 * FINAL_ACCURACY[MNIST.task][method]:.2f} %",
    )


def write_headline(path: Path, store: Store) -> None:
    write_section(path, "headline", headline(store))
