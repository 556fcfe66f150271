"""What Linux tells about processes: a process and its descendants, their memory, and who keeps the machine busy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    with suppress(OSError):  # it has just ended
        for thread in (_PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text().split():
                found += tree(int(child))
    return found


@dataclass(frozen=True)
class Memory:
    """Megabytes: data is what was written, by itself or where others can see it; code is what lies in files as it is.

    Whether a page of code counts whole depends on who else has the file open: that of data does not.
    """

    data_mb: float
    code_mb: float


def tree_memory(pid: int) -> Memory:
    """The proportional memory of a process and all its descendants; pages they share count once."""
    kilobytes = dict.fromkeys(("Pss_Anon", "Pss_Shmem", "Pss_File"), 0)
    for member in tree(pid):
        with suppress(OSError):
            for line in (_PROC / str(member) / "smaps_rollup").read_text().splitlines():
                kind, _, value = line.partition(":")
                if kind in kilobytes:
                    kilobytes[kind] += int(value.split()[0])
    anonymous, shared, files = (value * 1024 / 1e6 for value in kilobytes.values())
    return Memory(anonymous + shared, files)


def tree_cpu_s(pid: int) -> float:
    """The processor seconds that a process and all its living descendants have used."""
    ticks = 0
    for member in tree(pid):
        with suppress(OSError):
            fields = (_PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """The processor seconds that the whole machine has been busy."""
    user, nice, system, _idle, _waiting, *rest = (int(field) for field in _first_line().split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def _first_line() -> str:
    return (_PROC / "stat").read_text().splitlines()[0]


@dataclass(frozen=True)
class Watch:
    """Tells how much of the machine others have used since it was started; what disturbed a measurement shows there."""

    wall_s: float
    machine_s: float
    own_s: float

    @classmethod
    def start(cls) -> Watch | None:
        """None where there is no Linux to ask."""
        if not (_PROC / "stat").exists():
            return None
        return cls(perf_counter(), machine_cpu_s(), tree_cpu_s(os.getpid()))

    def others(self) -> float:
        """The share of the machine's processors that went to others."""
        wall = perf_counter() - self.wall_s
        theirs = machine_cpu_s() - self.machine_s - (tree_cpu_s(os.getpid()) - self.own_s)
        return max(0.0, theirs / (wall * (os.cpu_count() or 1)))
