"""How this process deals with memory that is freed."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of the C library's malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory that tensors give back: asking the system for it again takes up to a third of a
    training step, whose tensors are the same every time."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # not every C library of Linux has it
        library.mallopt(_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(_MMAP_THRESHOLD, 1 << 25)  # the most it takes
