"""`whalefl run`: one experiment into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whalefl.cli.options import experiment_of, repeating_command
from whalefl.cli.progress import progress_of
from whalefl.config import Values
from whalefl.execution import Job, execute
from whalefl.report.page import write_report
from whalefl.report.summary import summarise
from whalefl.runs import vacant_folder


def run_one(
    task: str | None,
    config: Path | None,
    options: Values,
    pairs: Sequence[str],
    out: Path | None,
) -> None:
    experiment = experiment_of(task, config, pairs, options)
    name = f"{experiment.task.partition(':')[0]}-{experiment.method}-seed{experiment.seed}"
    command = repeating_command()
    with vacant_folder(out, Path("runs") / name) as folder, progress_of({name: experiment}) as listener:
        run = execute(Job(name, experiment, folder, command), listener)
    write_report(folder, {experiment.method: {experiment.seed: run}}, experiment.target, command)
    summary = summarise(list(run.records()), experiment.target)
    ending = (
        f"rounds = {experiment.rounds}"
        if summary.rounds >= experiment.rounds
        else f"horizon_s = {experiment.horizon_s:g}"
    )
    print(f"{experiment.method} on {experiment.task}: {summary.rounds} rounds in {summary.time_s:.0f} virtual seconds")
    print(f"ended by        {ending}")
    print(f"final accuracy  {100 * summary.final_accuracy:.1f} %")
    if experiment.target is not None:
        when = "not reached" if summary.reached_s is None else f"after {summary.reached_s:.0f} virtual seconds"
        print(f"target {100 * experiment.target:.0f} %     {when}")
    print(f"folder          {folder}")
    print(f"repeat with     {command}")
