"""`whalefl testbed`: a federation in namespaces on this machine, and how well the simulator predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from whalefl.cli.deploy import agreed, need_flower
from whalefl.cli.options import repeating_command, words
from whalefl.errors import WhaleflError
from whalefl.runs import check_vacant, next_vacant

_STEADY = ("weather.fading=false",)
"""A round is one moment in the simulator: links that fade within it cannot be predicted by it."""


def testbed(
    task: str | None,
    config: Path | None,
    pairs: Sequence[str],
    options: dict[str, Any],
    methods: str,
    cores: str,
    repeats: int,
    gauge_rounds: int,
    out: Path | None,
) -> None:
    need_flower()
    from whalefl.flower.terms import terms_of
    from whalefl.flower.testbed.bench import Plan, run_testbed

    shares = _numbers(cores)
    plan = Plan(tuple(words("methods", methods)), repeats, shares, gauge_rounds)
    experiment, values = agreed(task, config, [*_STEADY, *pairs], options, len(shares))
    folder = out if out is not None else next_vacant(Path("runs") / f"testbed-{experiment.task}")
    check_vacant(folder)
    command = repeating_command()
    runs = run_testbed(experiment, terms_of(values), plan, folder, print)
    table = Table("method", "reached", "wall-clock s", "predicted s", "rounds", "round lengths off", box=SIMPLE_HEAD)
    for method in plan.methods:
        mine = [run for run in runs if run.method == method]
        reached = [run.reached_s for run in mine if run.reached_s is not None]
        predicted = [run.predicted_s for run in mine if run.predicted_s is not None]
        table.add_row(
            method,
            f"{len(reached)} of {len(mine)}",
            _spread(reached),
            _spread(predicted),
            _spread([float(run.rounds) for run in mine]),
            f"{100 * max(run.errors.median for run in mine):.0f} % (90th: "
            f"{100 * max(run.errors.worst_tenth for run in mine):.0f} %)",
        )
    Console().print(table)
    print("round lengths off: median and 90th percentile of a run, of the worst of the repeats")
    print(f"folder          {folder}")
    print(f"repeat with     {command}")


def empty_rounds(rounds: int) -> None:
    """How long a round takes that has next to nothing in it."""
    need_flower()
    from whalefl.flower.terms import Terms
    from whalefl.flower.testbed.bench import measure_overhead

    experiment, _ = agreed("digits", None, [], {}, None)
    for devices in (1, 2, 4):
        found = measure_overhead(experiment, Terms(), devices, rounds)
        print(
            f"{devices} devices: {found.median_s:.1f} s in the median of {found.rounds} rounds "
            f"({found.least_s:.1f} to {found.most_s:.1f} s)"
        )


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise WhaleflError(f"cores is {text!r}; it must be numbers with commas between them") from None


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = sum(values) / len(values)
    return f"{mean:.0f}" if len(values) == 1 else f"{mean:.0f} ({min(values):.0f}-{max(values):.0f})"
