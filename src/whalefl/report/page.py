"""Everything a comparison leaves for people: the table, the pictures, one page that holds both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from whalefl.errors import WhaleflError
from whalefl.report.comparison import Row, compare
from whalefl.report.ownership import PICTURE, common_run, save_ownership_plot
from whalefl.report.plots import save_plots
from whalefl.report.sizes import sizes_markdown
from whalefl.report.summary import summarise
from whalefl.report.table import markdown, notes
from whalefl.runs import DIVERGED, RunFolder, write_atomic, write_json

Runs = Mapping[str, Mapping[int, RunFolder]]
"""label -> seed -> run."""

_CAPTIONS = {
    "accuracy.png": "Accuracy of the global model over virtual time (thin: single seeds, thick: median).",
    "levels.png": "Mean width level of each kind of device over virtual time.",
    "fisher.png": "Fisher information measured by each kind of device over virtual time.",
    PICTURE: "What each device has to learn from, in the runs of the first seed.",
}


def write_report(
    folder: Path,
    runs: Runs,
    target: float | None,
    command: str,
) -> list[Row]:
    """Write table.json, the pictures and report.md into `folder`; `runs` maps label -> seed -> run folder.

    Runs that have nothing to show are named and left out.
    """
    lost = left_out(runs)
    kept = {label: {s: run for s, run in by_seed.items() if (label, s) not in lost} for label, by_seed in runs.items()}
    runs = {label: by_seed for label, by_seed in kept.items() if by_seed}
    if not runs:
        raise WhaleflError(f"no run has anything to show, the first one for this: {next(iter(lost.values()))}")
    records = {label: {s: list(run.records()) for s, run in by.items()} for label, by in runs.items()}
    rows = compare({label: {s: summarise(r, target) for s, r in by.items()} for label, by in records.items()})
    pictures = save_plots(folder, {label: list(by.values()) for label, by in records.items()}, target)
    if (run := common_run(runs)) is not None:
        pictures.append(save_ownership_plot(folder, run))
    write_json(folder / "table.json", {"command": command, "target": target, "rows": [asdict(row) for row in rows]})
    sections = [
        f"# {_title(runs)}\n",
        markdown(rows),
        notes(target, rows[0].label),
        *(f"Left out: {label}, seed {seed}: {reason}.\n" for (label, seed), reason in lost.items()),
        *(f"Not at its end: {label}, seed {seed}: {state}.\n" for (label, seed), state in not_ended(runs).items()),
        *(f"Note on the data: {note}.\n" for note in _data_notes(runs)),
        sizes_markdown(runs),
        *(f"![{_CAPTIONS[name]}]({name})\n\n{_CAPTIONS[name]}\n" for name in pictures),
        f"Made with\n\n    {command}\n",
    ]
    write_atomic(folder / "report.md", "\n".join(sections).encode())
    return rows


def _title(runs: Runs) -> str:
    (label, seed), *others = (key for key, _ in _each(runs))
    return "Comparison" if others else f"{label}, seed {seed}"


Told = dict[tuple[str, int], str]
"""What there is to say of a run, by label and seed."""


def left_out(runs: Runs) -> Told:
    """The runs that have nothing to show, and why."""
    found = {key: _nothing_to_show(run) for key, run in _each(runs)}
    return {key: reason for key, reason in found.items() if reason is not None}


def _nothing_to_show(run: RunFolder) -> str | None:
    meta = run.meta()
    if meta["status"] == DIVERGED:
        return str(meta["reason"])
    scored = any(record["accuracy"] is not None for record in run.records())
    return None if scored else f"{meta['status']}, and no round has been scored"


def not_ended(runs: Runs) -> Told:
    """The runs that have not come to their end, and how far they are."""
    return {
        key: f"{run.meta()['status']} after {sum(1 for _ in run.records())} rounds"
        for key, run in _each(runs)
        if not run.ended
    }


def _each(runs: Runs) -> Iterator[tuple[tuple[str, int], RunFolder]]:
    return (((label, seed), run) for label, by_seed in runs.items() for seed, run in by_seed.items())


def _data_notes(runs: Runs) -> list[str]:
    """What the runs say of their data, each thing once."""
    notes = [note for _, run in _each(runs) for note in run.meta().get("notes", [])]
    return list(dict.fromkeys(notes))
