"""Everything a comparison leaves for people: the table, the pictures, one page that holds both."""

from __future__ import annotations

from collections.abc import Mapping
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

_CAPTIONS = {
    "accuracy.png": "Accuracy of the global model over virtual time (thin: single seeds, thick: median).",
    "levels.png": "Mean width level of each kind of device over virtual time.",
    "fisher.png": "Fisher information measured by each kind of device over virtual time.",
    PICTURE: "What each device has to learn from, in the runs of the first seed.",
}


def write_report(
    folder: Path,
    runs: Mapping[str, Mapping[int, RunFolder]],
    target: float | None,
    command: str,
) -> list[Row]:
    """Write table.json, the pictures and report.md into `folder`; `runs` maps label -> seed -> run folder.

    Runs that diverged are named and left out.
    """
    lost = diverged(runs)
    kept = {label: {s: run for s, run in by_seed.items() if (label, s) not in lost} for label, by_seed in runs.items()}
    runs = {label: by_seed for label, by_seed in kept.items() if by_seed}
    if not runs:
        raise WhaleflError(f"every run diverged, the first one thus: {next(iter(lost.values()))}")
    records = {label: {s: list(run.records()) for s, run in by.items()} for label, by in runs.items()}
    rows = compare({label: {s: summarise(r, target) for s, r in by.items()} for label, by in records.items()})
    pictures = save_plots(folder, {label: list(by.values()) for label, by in records.items()}, target)
    if (run := common_run(runs)) is not None:
        pictures.append(save_ownership_plot(folder, run))
    write_json(folder / "table.json", {"command": command, "target": target, "rows": [asdict(row) for row in rows]})
    sections = [
        "# Comparison\n",
        markdown(rows),
        notes(target, rows[0].label),
        *(f"Left out: {label}, seed {seed}: {reason}.\n" for (label, seed), reason in lost.items()),
        *(f"Note on the data: {note}.\n" for note in _data_notes(runs)),
        sizes_markdown(runs),
        *(f"![{_CAPTIONS[name]}]({name})\n\n{_CAPTIONS[name]}\n" for name in pictures),
        f"Made with\n\n    {command}\n",
    ]
    write_atomic(folder / "report.md", "\n".join(sections).encode())
    return rows


def diverged(runs: Mapping[str, Mapping[int, RunFolder]]) -> dict[tuple[str, int], str]:
    """Label and seed of every run that diverged, and how it did."""
    metas = {(label, seed): run.meta() for label, by_seed in runs.items() for seed, run in by_seed.items()}
    return {key: meta["reason"] for key, meta in metas.items() if meta["status"] == DIVERGED}


def _data_notes(runs: Mapping[str, Mapping[int, RunFolder]]) -> list[str]:
    """What the runs say of their data, each thing once."""
    notes = [note for by_seed in runs.values() for run in by_seed.values() for note in run.meta().get("notes", [])]
    return list(dict.fromkeys(notes))
