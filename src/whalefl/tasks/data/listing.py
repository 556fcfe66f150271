"""Which data sets are at hand, without reading them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whalefl.tasks.data.datasets import DATASETS
from whalefl.tasks.data.sources import DAMAGE, sources_in
from whalefl.tasks.data.store import places


@dataclass(frozen=True)
class Entry:
    """One line of the list; `where` is None for a data set that is nowhere."""

    name: str
    where: Path | None
    form: str
    notes: tuple[str, ...]


def inventory(data_dir: Path | None = None) -> list[Entry]:
    """For every data set, the source that `load` would take."""
    return [_entry(name, places(data_dir)) for name in DATASETS]


def _entry(name: str, looked: list[Path]) -> Entry:
    for place in looked:
        for source in sources_in(name, place):
            notes: tuple[str, ...] = ("its header cannot be read",)
            with suppress(*DAMAGE):
                notes = source.notes()
            return Entry(name, source.files[0].parent, source.form, notes)
    return Entry(name, None, "missing", ())
