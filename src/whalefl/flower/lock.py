"""One server at a time in a folder: one that was killed may take a moment to be gone."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whalefl.errors import WhaleflError


@contextmanager
def only_one(path: Path, patience_s: float = 60.0) -> Iterator[None]:
    """Hold the lock in this file during the block; raises if another holds it for longer than one is patient."""
    until = time.monotonic() + patience_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise WhaleflError(f"another server is using {path.parent}; it must be ended first") from None
                time.sleep(0.2)
        yield
