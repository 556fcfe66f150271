"""`whalefl compare`: methods x sweeps x seeds under the same weather, then a table and pictures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from whalefl.cli.comparison import Comparison
from whalefl.cli.options import (
    experiment_of,
    numbers,
    refuse_file_of_one_method,
    refuse_keys,
    repeating_command,
    resumable,
    words,
)
from whalefl.cli.progress import progress_of
from whalefl.config import Experiment, Values
from whalefl.errors import WhaleflError, require
from whalefl.execution import Job, execute_all, make_folders
from whalefl.runs import CONFIG, alone_in, vacant_folder


def compare_methods(
    task: str | None,
    config: Path | None,
    options: Values,
    methods: str,
    seeds: str,
    sweep: Sequence[str],
    pairs: Sequence[str],
    out: Path | None,
    jobs: int | None,
    together: int,
) -> None:
    if jobs is not None:
        require(jobs >= 1, "jobs", jobs, "at least 1")
    require(together >= 1, "together", together, "at least 1")
    refuse_keys(("method", "seed"), pairs, "--set")
    refuse_keys(("task", "method", "seed", "target"), sweep, "--sweep")
    names = words("methods", methods)
    refuse_file_of_one_method(config, names)
    variants = {
        (" ".join([method, *point]), seed): experiment_of(
            task, config, pairs, {**options, "method": method, "seed": seed}, point
        )
        for method, point, seed in product(names, _points(sweep), numbers("seeds", seeds))
    }
    first = next(iter(variants.values()))
    command = repeating_command()
    default = Path("runs") / f"compare-{first.task.partition(':')[0]}"
    with vacant_folder(out, default) as folder, alone_in(folder):
        work = {key: _job(folder, *key, experiment) for key, experiment in variants.items()}
        comparison = Comparison(folder, command, {key: job.folder.name for key, job in work.items()})
        make_folders(list(work.values()))
        comparison.write()
        with resumable(folder), progress_of({job.name: job.experiment for job in work.values()}) as listener:
            execute_all(list(work.values()), jobs or os.cpu_count() or 1, listener, together)
        comparison.show()


def _points(sweep: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of swept values, as key=value pairs; one empty point without a sweep."""
    axes: dict[str, list[str]] = {}
    for text in sweep:
        key, equals, values = text.partition("=")
        if not equals:
            raise WhaleflError(f"sweep is {text!r}; it must be key=a,b,...")
        if key in axes:
            raise WhaleflError(f"sweep is {text!r}; {key} must be swept once, with all of its values")
        axes[key] = [f"{key}={value}" for value in words("sweep", values)]
    return list(product(*axes.values()))


def _job(folder: Path, label: str, seed: int, experiment: Experiment) -> Job:
    place = "".join(c if c.isalnum() or c in ".+=-" else "-" for c in f"{label}-seed{seed}")
    command = shlex.join(["whalefl", "run", "--config", str(folder / place / CONFIG)])
    return Job(f"{label} seed {seed}", experiment, folder / place, command)
