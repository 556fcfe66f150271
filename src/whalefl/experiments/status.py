"""The part of results/STATUS.md that says which reported runs are missing; the rest of the page stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whalefl.experiments.plan import Entry
from whalefl.experiments.tables import grid
from whalefl.runs import write_atomic

BEGIN, END = "<!-- missing runs: begin -->", "<!-- missing runs: end -->"


def write_status(folder: Path, entries: Sequence[Entry]) -> None:
    """Refresh the section between the two marks, or add it to the end."""
    path = folder / "STATUS.md"
    text = path.read_text(encoding="utf8") if path.exists() else "# Runs that are still missing\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    section = f"{BEGIN}\n{_section(entries)}\n{END}"
    write_atomic(path, (before.rstrip() + "\n\n" + section + (after if after.strip() else "\n")).encode())


def _section(entries: Sequence[Entry]) -> str:
    """One line for each cell, in order of priority, with the seeds that are missing."""
    cells: dict[str, list[int]] = {}
    for entry in entries:
        if not entry.done:
            label = entry.labels[0] if entry.labels else entry.run.name
            cells.setdefault(label, []).append(entry.run.experiment.seed)
    done = sum(entry.done for entry in entries)
    head = (
        f"## Reported runs\n\n{done} of {len(entries)} are there; what is missing was left out for lack of time. "
        "In order of priority (`whalefl reproduce all --plan` prints each run):\n\n"
    )
    rows = [("cell", "missing seeds"), *((label, _ranges(seeds)) for label, seeds in cells.items())]
    return head + grid(rows).rstrip() if cells else head.partition("In order")[0].rstrip()


def _ranges(numbers: Sequence[int]) -> str:
    """0-4, 7: runs of numbers by their ends."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
