"""`whalefl run`: one experiment into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whalefl.cli.endings import end_run
from whalefl.cli.options import experiment_of, repeating_command, resumable
from whalefl.cli.progress import progress_of
from whalefl.config import Values
from whalefl.execution import Job, execute
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
    with vacant_folder(out, Path("runs") / name) as folder:
        with resumable(folder), progress_of({name: experiment}) as listener:
            run = execute(Job(name, experiment, folder, command), listener)
        end_run(run, experiment, command)
