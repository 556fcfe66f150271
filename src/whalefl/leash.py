"""Processes that end with the one that started them, so that nothing goes on of what was killed."""

from __future__ import annotations

import ctypes
import signal
import sys

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Only Linux can; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
