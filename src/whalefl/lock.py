"""One process at a time in a folder: one that was killed may take a moment to be gone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whalefl.errors import WhaleflError


@contextmanager
def only_one(folder: Path, patience_s: float = 60.0) -> Iterator[None]:
    """Hold a folder during the block; raises if another process holds it for longer than one is patient. (Windows
    cannot lock folders: there nothing is checked.)"""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    until = time.monotonic() + patience_s
    handle = os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise WhaleflError(f"another process is using {folder}; it must be ended first") from None
                time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder now."""
    try:
        with only_one(folder, patience_s=0):
            return False
    except WhaleflError:
        return True
