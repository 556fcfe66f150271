"""Where a data set can come from: the files of one form in one place, and reading them with every mistake named."""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import error as StructError

from safetensors import SafetensorError

from whalefl.errors import WhaleflError
from whalefl.tasks.data import canonical, compact, official
from whalefl.tasks.data.datasets import Dataset, describe

CANONICAL, OFFICIAL, COMPACT = "canonical", "official", "compact"

DAMAGE = (
    *(OSError, EOFError, ValueError, LookupError, ArithmeticError, RuntimeError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, StructError, SafetensorError),
)  # what the readers raise when a file is cut off or is something else


@dataclass(frozen=True)
class Source:
    """The files of one data set in one form, found in one place."""

    name: str
    form: str
    place: Path
    files: tuple[Path, ...]

    def read(self) -> Dataset:
        """The data set, checked."""
        try:
            match self.form:
                case "canonical":
                    arrays = canonical.read_arrays(self.files[0])
                case "official":
                    arrays = official.READERS[self.name](self.files)
                case _:
                    arrays = compact.READERS[self.name](self.files)
            describe(self.name).check(arrays)
            return Dataset(self.name, arrays, self.notes())
        except DAMAGE as error:
            raise WhaleflError(
                f"data set {self.name} cannot be read from {str(self.files[0])!r} in its {self.form} form ({error}); "
                f"remove it, and `whalefl data fetch {self.name}` gets the official files"
            ) from error

    def notes(self) -> tuple[str, ...]:
        if self.form == CANONICAL:
            return canonical.read_header(self.files[0]).notes
        return compact.NOTES[self.name] if self.form == COMPACT else ()

    def fingerprint(self) -> str:
        """Changes when a file is moved, replaced or touched."""
        stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in self.files]
        return hashlib.blake2b(repr((self.form, stats)).encode(), digest_size=16).hexdigest()


def sources_in(name: str, place: Path) -> list[Source]:
    """What one place has to offer, the quickest form first; files may lie in it or in its folder `name`."""
    layouts = (
        (CANONICAL, ((canonical.canonical_name(name),),)),
        (OFFICIAL, official.LAYOUTS[name]),
        (COMPACT, compact.LAYOUTS.get(name, ())),
    )
    found = []
    for form, choices in layouts:
        for folder in (place, place / name):
            for choice in choices:
                files = tuple(folder / file for file in choice)
                if all(os.path.isfile(file) for file in files):
                    found.append(Source(name, form, place, files))
    return found
