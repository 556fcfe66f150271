"""`whalefl resume` and `whalefl report`: go on with what was interrupted, and show what there is."""

from __future__ import annotations

import os
from pathlib import Path

from whalefl.cli.comparison import Comparison, experiment_in
from whalefl.cli.endings import end_run
from whalefl.cli.options import resumable
from whalefl.cli.progress import progress_of
from whalefl.errors import WhaleflError, require
from whalefl.execution import Job, execute, execute_all
from whalefl.runs import COMPARISON, DEPLOYED, RUN, RunFolder, alone_in


def resume(folder: Path, jobs: int | None, together: int) -> None:
    """Carry out what is left of a run or of a comparison, then show it."""
    if jobs is not None:
        require(jobs >= 1, "jobs", jobs, "at least 1")
    require(together >= 1, "together", together, "at least 1")
    if not _compared(folder):
        run = RunFolder(folder)
        meta = run.meta()
        if run.ended or meta["command"].startswith(DEPLOYED):
            why = "is a federation's, which `whalefl deploy server` resumes" if not run.ended else "has ended"
            raise WhaleflError(f"folder is {str(folder)!r}, whose run {why}; it must be one that was interrupted")
        experiment, name = experiment_in(folder), folder.name
        with resumable(folder), progress_of({name: experiment}) as listener:
            execute(Job(name, experiment, folder, meta["command"]), listener)
        end_run(run, experiment, meta["command"])
        return
    with alone_in(folder):
        comparison = Comparison.read(folder)
        left = [
            Job(f"{label} seed {seed}", experiment_in(run.path), run.path, run.meta()["command"])
            for label, by_seed in comparison.runs.items()
            for seed, run in by_seed.items()
            if not run.ended
        ]
        with resumable(folder), progress_of({job.name: job.experiment for job in left}) as listener:
            execute_all(left, jobs or os.cpu_count() or 1, listener, together)
        comparison.show()


def report(folder: Path) -> None:
    """Write and show the report on a run or a comparison, however far it is."""
    if _compared(folder):
        Comparison.read(folder).show()
    else:
        run = RunFolder(folder)
        end_run(run, experiment_in(folder), run.meta()["command"])


def _compared(folder: Path) -> bool:
    """Whether the folder is that of a comparison, and not of a run."""
    if not (folder / RUN).exists() and not (folder / COMPARISON).exists():
        what = "holds no run" if folder.exists() else "does not exist"
        raise WhaleflError(f"folder is {str(folder)!r}, which {what}; it must be that of a run or a comparison")
    return (folder / COMPARISON).exists()
