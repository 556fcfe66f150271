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
from whalefl.report.summary import Record, RunSummary, summarise, summarise_diverged
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

    Runs that have nothing to show are named and left out. Those that diverged are named too; the table counts them as
    runs that never reach the target, and the pictures are without them.
    """
    lost, gone = left_out(runs), diverged(runs)
    every, runs = _without(runs, lost), _without(runs, {**lost, **gone})
    if not runs:
        reason = next(iter({**lost, **gone}.values()))
        raise WhaleflError(f"no run has anything to show, the first one for this: {reason}")
    records = {label: {s: list(run.records()) for s, run in by.items()} for label, by in every.items()}
    rows = compare(_summaries(records, gone, target))
    shown = {label: [records[label][seed] for seed in by] for label, by in runs.items()}
    pictures = save_plots(folder, shown, target)
    if (run := common_run(runs)) is not None:
        pictures.append(save_ownership_plot(folder, run))
    write_json(folder / "table.json", {"command": command, "target": target, "rows": [asdict(row) for row in rows]})
    sections = [
        f"# {_title(every)}\n",
        markdown(rows),
        notes(target, rows[0].label),
        *(f"Left out: {label}, seed {seed}: {reason}.\n" for (label, seed), reason in lost.items()),
        *(f"Diverged, {COUNTED}: {label}, seed {seed}: {reason}.\n" for (label, seed), reason in gone.items()),
        *(f"Not at its end: {label}, seed {seed}: {state}.\n" for (label, seed), state in not_ended(runs).items()),
        *(f"Note on the data: {note}.\n" for note in _data_notes(every)),
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


COUNTED = "and so never at the target and with nothing right in the end"


def left_out(runs: Runs) -> Told:
    """The runs that have nothing to show, and why."""
    return {
        key: f"{status}, and no round has been scored"
        for key, run in _each(runs)
        if (status := run.meta()["status"]) != DIVERGED and all(r["accuracy"] is None for r in run.records())
    }


def diverged(runs: Runs) -> Told:
    """The runs that broke off, and how."""
    metas = {key: run.meta() for key, run in _each(runs)}
    return {key: str(meta["reason"]) for key, meta in metas.items() if meta["status"] == DIVERGED}


def _without(runs: Runs, these: Told) -> Runs:
    kept = {label: {s: run for s, run in by_seed.items() if (label, s) not in these} for label, by_seed in runs.items()}
    return {label: by_seed for label, by_seed in kept.items() if by_seed}


def _summaries(
    records: Mapping[str, Mapping[int, list[Record]]], gone: Told, target: float | None
) -> dict[str, dict[int, RunSummary]]:
    """Of every run; one that diverged is taken to have had as long as the longest of them."""
    longest = max(own[-1]["time_s"] for by_seed in records.values() for own in by_seed.values() if own)
    return {
        label: {
            seed: summarise_diverged(own, target, longest) if (label, seed) in gone else summarise(own, target)
            for seed, own in by_seed.items()
        }
        for label, by_seed in records.items()
    }


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
