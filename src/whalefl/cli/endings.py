"""What is left and shown when runs have ended, or of as much of them as there is."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console

from whalefl.cli.tables import print_table
from whalefl.config import Experiment
from whalefl.lock import is_held
from whalefl.report.page import Runs, diverged, left_out, not_ended, write_report
from whalefl.report.summary import WINDOW, summarise
from whalefl.report.table import HEADER, cells, notes
from whalefl.runs import DEPLOYED, RUNNING, RunFolder


def end_run(run: RunFolder, experiment: Experiment, command: str) -> None:
    """The report on one run."""
    runs = {experiment.method: {experiment.seed: run}}
    write_report(run.path, runs, experiment.target, command)
    summary = summarise(list(run.records()), experiment.target)
    print(f"{experiment.method} on {experiment.task}: {summary.rounds} rounds in {summary.time_s:.0f} virtual seconds")
    print(f"ended by        {_ending(run, experiment, summary.rounds)}")
    print(f"final accuracy  {100 * summary.final_accuracy:.1f} %")
    if experiment.target is not None:
        when = "not reached" if summary.reached_s is None else f"after {summary.reached_s:.0f} virtual seconds"
        print(f"target {100 * experiment.target:.0f} %     {when} (by the mean of {WINDOW} evaluations)")
    print(f"folder          {run.path}")
    print(f"repeat with     {command}")


def _ending(run: RunFolder, experiment: Experiment, rounds: int) -> str:
    meta = run.meta()
    status = meta["status"]
    if status == RUNNING and not (is_held(run.path) or is_held(run.path.parent)):
        status = "killed"
    if not run.ended:
        goes_on = meta["command"] if meta["command"] == DEPLOYED else f"whalefl resume {run.path}"
        return f"nothing yet, it is {status}; `{goes_on}` goes on"
    return f"rounds = {rounds}" if rounds >= experiment.rounds else f"horizon_s = {experiment.horizon_s:g}"


def end_comparison(folder: Path, runs: Runs, target: float | None, command: str) -> None:
    """The report on several runs."""
    rows = write_report(folder, runs, target, command)
    print_table([name.replace(" ", "\n") for name in HEADER], cells(rows))
    print(textwrap.fill(notes(target, rows[0].label), Console().width))
    for what, told in (("left out", left_out(runs)), ("diverged", diverged(runs)), ("not at its end", not_ended(runs))):
        for (label, seed), text in told.items():
            print(f"{what:15} {label}, seed {seed}: {text}")
    print(f"report          {folder / 'report.md'}")
    print(f"repeat with     {command}")
