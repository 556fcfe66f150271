"""The part of results/STATUS.md that says which reported runs are missing; the rest of the page stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whalefl.experiments.plan import Entry
from whalefl.experiments.sections import write_section
from whalefl.markdown import grid


def write_status(folder: Path, entries: Sequence[Entry]) -> None:
    """Refresh the section, or add it to the end."""
    write_section(folder / "STATUS.md", "missing runs", _section(entries), "# Runs that are still missing\n")


def _section(entries: Sequence[Entry]) -> str:
    """One line for each cell, in order of priority, with the seeds that are missing."""
    cells: dict[str, list[int]] = {}
    for entry in entries:
        if not entry.done:
            label = entry.labels[0] if entry.labels else entry.run.name
            cells.setdefault(label, []).append(entry.run.experiment.seed)
    done = sum(entry.done for entry in entries)
    head = f"## Reported runs\n\n{done} of {len(entries)} are there"
    if not cells:
        return f"{head}."
    rows = [("cell", "missing seeds"), *((label, _ranges(seeds)) for label, seeds in cells.items())]
    return (
        f"{head}; what is missing was left out for lack of time, or waits for what the table above says. In order of "
        f"priority (`whalefl reproduce all --plan` prints each run):\n\n{grid(rows).rstrip()}"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """0-4, 7: runs of numbers by their ends."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
