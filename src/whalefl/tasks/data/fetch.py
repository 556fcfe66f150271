"""Getting the official files from their publishers: all of them, checked, or nothing."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from whalefl.errors import WhaleflError
from whalefl.tasks.data import canonical
from whalefl.tasks.data.datasets import Dataset, Description, OfficialFile, describe
from whalefl.tasks.data.sources import OFFICIAL, Source, sources_in

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT_S = 30
CHUNK_BYTES = 1 << 16


def fetch(name: str, folder: Path, progress: bool = False, base_urls: Mapping[str, str] | None = None) -> None:
    """Put the official files into `folder/name` and the canonical form beside them; keep files that are good already.

    `base_urls` maps the name of a data set to a mirror that has its files under the names of the official addresses.
    """
    description = describe(name)
    base = (base_urls or {}).get(name)
    dataset = _already_there(description, folder)
    files: tuple[Path, ...] = ()
    with _scratch(folder, name) as scratch:
        if dataset is None:
            with _bars(progress) as bars:
                files = tuple(_download(file, base, scratch, bars) for file in description.files)
            dataset = _read(Source(name, OFFICIAL, scratch, files))
        ready = scratch / canonical.canonical_name(name)
        canonical.write(ready, dataset)
        for file in files:
            (folder / name).mkdir(exist_ok=True)
            os.replace(file, folder / name / file.name)
        os.replace(ready, folder / ready.name)


def _already_there(description: Description, folder: Path) -> Dataset | None:
    published = {file.name: file.md5 for file in description.files}
    for source in sources_in(description.name, folder):
        if source.form == OFFICIAL and all(_has_md5(file, published.get(file.name)) for file in source.files):
            with suppress(WhaleflError):
                return source.read()
    return None


def _has_md5(file: Path, md5: str | None) -> bool:
    if md5 is None:
        return True
    with file.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest() == md5


def _read(source: Source) -> Dataset:
    try:
        return source.read()
    except WhaleflError as error:
        raise WhaleflError(
            f"the download of {source.name} is not what is published ({error.__cause__}); "
            f"nothing was kept, try again later"
        ) from error


def _download(file: OfficialFile, base: str | None, folder: Path, bars: Progress | None) -> Path:
    import pooch  # type: ignore[import-untyped]

    pooch.get_logger().setLevel("WARNING")
    url = file.url if base is None else f"{base.rstrip('/')}/{file.url.rpartition('/')[2]}"
    known = None if file.md5 is None else f"md5:{file.md5}"
    # Unasked, a server may unpack a .gz on the way, and then no checksum fits.
    headers = {"Accept-Encoding": "identity"}
    bar = _Bar(bars, file.name) if bars is not None else False
    get = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S, headers=headers)
    try:
        return Path(pooch.retrieve(url, known_hash=known, fname=file.name, path=folder, downloader=get))
    except OSError as error:
        raise WhaleflError(f"{url} cannot be downloaded ({error}); nothing was kept, try again later") from error
    except ValueError as error:
        raise WhaleflError(
            f"{url} does not have the published checksum; it must be {known}, and nothing was kept"
        ) from error


@contextmanager
def _scratch(folder: Path, name: str) -> Iterator[Path]:
    """A hidden folder inside `folder`, gone afterwards, and with it every folder that was made for it and is empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as scratch:
            yield Path(scratch)
    except OSError as error:
        raise WhaleflError(
            f"folder is {str(folder)!r}, which cannot be written ({error}); it must be a folder of yours with room"
        ) from error
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


class _Bar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._task = bars, bars.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        return self._bars.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        self._bars.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._bars.advance(self._task, size)

    def reset(self) -> None:
        self._bars.update(self._task, completed=0)

    def close(self) -> None:
        """The bar stays until all files are there."""


@contextmanager
def _bars(wanted: bool) -> Iterator[Progress | None]:
    """Progress bars on a terminal, and none anywhere else."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True) if console.is_terminal else None
    with nullcontext() if bars is None else bars:
        yield bars
