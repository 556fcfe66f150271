"""The run folder: which files a run leaves behind, and how they are written so that none is ever half there.

config.toml         the full configuration, every default included
run.json            schema, version, the command that repeats the run, its status, notes on its data
ownership.json      which device has how many examples of what
metrics.jsonl       one RoundRecord a line, appended as rounds end
model.safetensors   the final global model
levels.json         that model at each of its sizes: parameters and scores
statistics.safetensors   the batch-norm statistics of each size, so that it can be used without data
checkpoint.safetensors   where a run that has not ended can go on
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from whalefl.errors import WhaleflError
from whalefl.lock import only_one
from whalefl.values import RoundRecord

SCHEMA = 1
CONFIG, RUN, METRICS, MODEL = "config.toml", "run.json", "metrics.jsonl", "model.safetensors"
CHECKPOINT, COMPARISON = "checkpoint.safetensors", "comparison.json"
DEPLOYED = "whalefl deploy server"
"""The command that fills a federation's run folder, and goes on with it."""

WAITING, RUNNING, FINISHED, DIVERGED = "waiting", "running", "finished", "diverged"
OWNERSHIP, LEVELS, STATISTICS = "ownership.json", "levels.json", "statistics.safetensors"


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new one, never a part of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf8"))


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. `create` makes it, the other methods fill and read it."""

    path: Path

    @classmethod
    def create(cls, path: Path, config_toml: str, command: str, version: str, notes: Sequence[str] = ()) -> RunFolder:
        check_vacant(path)
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        write_atomic(path / CONFIG, config_toml.encode())
        write_json(
            path / RUN,
            {"schema": SCHEMA, "version": version, "command": command, "status": WAITING, "notes": list(notes)},
        )
        (path / METRICS).touch()
        return folder

    def append(self, record: RoundRecord) -> None:
        line = json.dumps(asdict(record), separators=(",", ":"), allow_nan=False)
        with (self.path / METRICS).open("a", encoding="utf8") as file:
            file.write(line + "\n")

    @property
    def ended(self) -> bool:
        """Whether the run has come to its end; it may have diverged there."""
        return self.meta()["status"] in (FINISHED, DIVERGED)

    def keep_rounds(self, last: int) -> int:
        """Forget the records of rounds after this one, and of one that is only half there; how many are left."""
        with (self.path / METRICS).open(encoding="utf8") as file:
            kept = [line for line in file if line.endswith("\n") and json.loads(line)["round"] <= last]
        write_atomic(self.path / METRICS, "".join(kept).encode())
        return len(kept)

    def settle(self) -> None:
        """See to it that what was recorded outlives a power cut."""
        with (self.path / METRICS).open("rb+") as file:
            os.fsync(file.fileno())

    def mark(self, status: str, reason: str | None = None) -> None:
        """Note how the run stands, and why if it did not end as it should."""
        write_json(self.path / RUN, {**self.meta(), "status": status} | ({} if reason is None else {"reason": reason}))

    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = read_json(self.path / RUN)
        return meta

    def records(self) -> Iterator[dict[str, Any]]:
        """The rounds as plain dictionaries, in order."""
        with (self.path / METRICS).open(encoding="utf8") as file:
            for line in file:
                if line.endswith("\n"):  # a run that was killed may have left half a line
                    yield json.loads(line)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, which may still have to be made; if nothing has come of that in the end, it goes again."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with only_one(folder, patience_s=0):
            yield
    finally:
        if new:
            with suppress(OSError):
                folder.rmdir()


def check_vacant(path: Path) -> None:
    """A run never writes into a folder that holds something already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise WhaleflError(f"out is {str(path)!r}, which already exists and is not empty; name a new folder")


@contextmanager
def vacant_folder(wanted: Path | None, default: Path) -> Iterator[Path]:
    """The folder to write into: the one that is wanted, or else a new one (see `claim_vacant`). If nothing has come of
    it in the end, a new one goes again."""
    if wanted is not None:
        check_vacant(wanted)
        yield wanted
        return
    new = [] if default.parent.exists() else [default.parent]
    folder = claim_vacant(default)
    try:
        yield folder
    finally:
        with suppress(OSError):  # what is in it keeps it
            for made in (folder, *new):
                made.rmdir()


def claim_vacant(path: Path) -> Path:
    """Make the folder `path`, or the first of path-2, path-3 ... that is not there: nobody else gets the same one."""
    for candidate in chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2))):
        with suppress(FileExistsError):
            candidate.mkdir(parents=True)
            return candidate
    raise AssertionError("there is no end of numbers")
