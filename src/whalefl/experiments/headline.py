"""The figures of the reproduction that the README shows."""

from __future__ import annotations

from pathlib import Path

from whalefl.experiments.paper import FINAL_ACCURACY, SPEEDUP_OVER_FEDAVG_BY_SIGMA
from whalefl.experiments.protocol import MNIST, SEVEN
from whalefl.experiments.reading import main_cell, speedup_over, summaries
from whalefl.experiments.sections import write_section
from whalefl.experiments.store import Store
from whalefl.experiments.tables import NOT_RUN, crossing, final_of, hours_spent, percent, speedup_text
from whalefl.markdown import grid


def headline(store: Store) -> str:
    """All seven methods on CNN@MNIST: the paper's figures and ours."""
    seeds = min(len(summaries(store, main_cell(MNIST, method))) for method in SEVEN)
    target = f"{100 * MNIST.target:.0f} %"
    header = (
        "method",
        f"hours to {target}",
        "first crossing (h)",
        "times sooner than FedAvg [95 %]",
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
