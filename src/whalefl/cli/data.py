"""`whalefl data list` and `whalefl data fetch`: which data sets are at hand, and getting one from its publisher."""

from __future__ import annotations

from pathlib import Path

from whalefl.cache import cache_dir
from whalefl.tasks.data.datasets import describe
from whalefl.tasks.data.fetch import fetch
from whalefl.tasks.data.listing import inventory


def list_data(data_dir: Path | None = None) -> None:
    """One line for each data set, and its notes below it."""
    for entry in inventory(data_dir):
        where = f"get it with: whalefl data fetch {entry.name}" if entry.where is None else str(entry.where)
        print(f"{entry.name:<10} {entry.form:<10} {where}")
        for note in entry.notes:
            print(f"{'':<21} {note}")


def fetch_data(name: str, data_dir: Path | None = None) -> None:
    """Into `data_dir`, or into the user's cache, where `load` finds it without being told."""
    folder = cache_dir() if data_dir is None else data_dir
    fetch(name, folder, progress=True)
    print(f"{name} is in {folder}")
    print(f"licence: {describe(name).licence}")
