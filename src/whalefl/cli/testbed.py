"""`whalefl testbed`: a federation in namespaces on this machine, and how well the simulator predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whalefl.cli.deploy import agreed, need_flower
from whalefl.cli.options import repeating_command, words
from whalefl.cli.tables import print_table
from whalefl.errors import WhaleflError
from whalefl.runs import vacant_folder

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
    from whalefl.flower.testbed.bench import Plan, run_testbed
    from whalefl.flower.testbed.page import METHOD_HEADS, method_rows, page

    shares = _numbers(cores)
    plan = Plan(tuple(words("methods", methods)), repeats, shares, gauge_rounds)
    deployment = agreed(task, config, [*_STEADY, *pairs], options, len(shares))
    task_name = deployment.experiment.task
    command = repeating_command()
    with vacant_folder(out, Path("runs") / f"testbed-{task_name}") as folder:
        runs, gauges = run_testbed(deployment.experiment, deployment.terms, plan, folder, print)
        text = page(f"The testbed against the simulator: {task_name}", runs, gauges, plan.cores, command)
        (folder / "README.md").write_text(text, encoding="utf8")
    print_table(METHOD_HEADS, method_rows(runs))
    print("means, with the least and the most; round lengths: of the worst repeat")
    print(f"folder          {folder}")
    print(f"repeat with     {command}")


def empty_rounds(rounds: int) -> None:
    """How long a round takes that has next to nothing in it."""
    need_flower()
    from whalefl.flower.terms import Terms
    from whalefl.flower.testbed.bench import measure_overhead

    experiment = agreed("digits", None, [], {}, None).experiment
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
