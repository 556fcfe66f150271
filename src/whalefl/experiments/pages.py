"""What a study leaves for people: one page with its tables and pictures, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from whalefl.experiments.plan import Entry
from whalefl.experiments.protocol import ENDED_EARLIER, LABELS, SEVEN, TASKS, Setting
from whalefl.experiments.reading import main_cell, metric_of
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.studies import Study
from whalefl.experiments.tuning import borrowed, winner
from whalefl.markdown import grid
from whalefl.runs import write_atomic

_READ_AS = (
    "A target counts as reached at the end of the first round from which the mean of 5 evaluations is at or above it, "
    "which for steep curves is before the first single evaluation at or above it; that one stands beside. Times are "
    "virtual hours, medians over seeds; speed-ups (below 1: later) are geometric means of ratios with the same seed "
    "and weather, with 95 % bootstrap intervals (of three seeds, no more than their range). ≥ and ≤ (~: both) mark "
    "bounds: some runs ended at the horizon before they reached the target. What is assumed: [the "
    "protocol](../../docs/reproduction.md)."
)


def write_page(study: Study, store: Store, entries: Sequence[Entry]) -> Path:
    """Write results/NAME/README.md and the pictures; `entries` are the runs that the study needs."""
    folder = store.folder / study.name
    folder.mkdir(parents=True, exist_ok=True)
    finished = [run for entry in entries if (run := store.find(entry.run)) is not None]
    sections = [
        f"# {study.title}",
        f"{study.text}\n\n{_READ_AS}",
        *(table.markdown(store).rstrip() for table in study.tables),
        *_pictures(study, store, folder),
        _notes(study, store),
        _state(entries),
        _origin(study, finished),
    ]
    path = folder / "README.md"
    write_atomic(path, ("\n\n".join(section for section in sections if section) + "\n").encode())
    return path


def _pictures(study: Study, store: Store, folder: Path) -> list[str]:
    shown = []
    for picture in study.pictures:
        figure = picture.draw(store)
        if figure is not None:
            figure.savefig(folder / f"{picture.name}.png", dpi=110)
            plt.close(figure)
            shown.append(f"![{picture.caption}]({picture.name}.png)\n\n{picture.caption}")
    return shown


def _notes(study: Study, store: Store) -> str:
    settings = {cell.setting.task: cell.setting for cell in study.cells if store.runs(cell)}
    notes = [
        f"- {setting.name}: its training times are extrapolated far beyond what was measured on the devices."
        for setting in settings.values()
        if setting.extrapolated
    ]
    if "wikitext2" in settings:
        reading = {"accuracy": "masked positions", "accuracy_all": "all positions"}
        metric = metric_of(store, settings["wikitext2"])
        notes.append(
            f"- Transformer@WikiText2: accuracy is that on {reading[metric]}, on which FedAvg with the authors' "
            "settings was nearer to the paper's 40.54 % in tuning, though not near: what it measured is not known."
        )
    notes += [note for setting in TASKS if setting.task in settings for note in _untuned(store, setting)]
    run = {(cell.setting.task, cell.method) for cell in study.cells if store.runs(cell)}
    notes += [
        f"- {settings[task].name}: {LABELS[method]}'s runs end after {most:,} rounds at the latest, before the horizon "
        "if need be."
        for (task, method), most in ENDED_EARLIER.items()
        if (task, method) in run
    ]
    if "cifar10" in settings:
        notes.append(
            "- CIFAR-10 was read from compact files, in which 93 of the 60,000 images are decoded from JPEG copies "
            "([data](../../docs/data.md#the-compact-files))."
        )
    return "## Notes\n\n" + "\n".join(notes) if notes else ""


def _untuned(store: Store, setting: Setting) -> list[str]:
    """Which methods were not tuned on a task, by where they have their settings from."""
    methods: dict[str, list[str]] = {}
    for method in SEVEN:
        if store.runs(main_cell(setting, method)) and winner(store, setting, method) is None:
            other = borrowed(store, setting, method)
            origin = "the authors' learning rate" if other is None else f"what {LABELS[other.cell.method]} won with"
            methods.setdefault(origin, []).append(LABELS[method])
    return [f"- {setting.name}: not tuned, but with {o}: {', '.join(names)}." for o, names in methods.items()]


def _state(entries: Sequence[Entry]) -> str:
    missing = sum(not entry.done for entry in entries)
    if not missing:
        return ""
    return f"{missing} of {len(entries)} runs are missing: [STATUS.md](../STATUS.md) says which and why."


def _origin(study: Study, finished: Sequence[Finished]) -> str:
    made = f"Made with\n\n    whalefl reproduce {study.name}"
    if not finished:
        return made
    commits: dict[tuple[str, str], int] = {}
    for run in finished:
        key = (run.compact["commit"], run.compact["machine"])
        commits[key] = commits.get(key, 0) + 1
    rows = [("runs", "commit", "machine"), *((str(n), f"`{c}`", machine) for (c, machine), n in commits.items())]
    return f"{made}\n\n" + grid(rows).rstrip()
