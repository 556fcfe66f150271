"""Cpu quotas: a control group for each device, of version 1 or 2, gone when the block ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whalefl.errors import WhaleflError, require_finite_number

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Hierarchy:
    """Where control groups with a cpu controller are made, and of which version they are."""

    path: Path
    version: int


def find_hierarchy(root: Path = ROOT) -> Hierarchy:
    """Version 2 where it has the cpu controller, else version 1."""
    for path in (root, root / "unified"):
        controllers = path / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text(encoding="ascii").split():
            return Hierarchy(path, 2)
    for path in (root / "cpu", root / "cpu,cpuacct"):
        if (path / "cpu.cfs_quota_us").exists() or (path / "cgroup.procs").exists():
            return Hierarchy(path, 1)
    raise WhaleflError(f"{root} has no cpu controller; a testbed needs control groups of version 1 or 2")


@dataclass(frozen=True)
class Quota:
    """One group; `set` limits it to so many cores."""

    path: Path
    version: int

    def set(self, cores: float) -> None:
        require_finite_number("quota", cores, above=0)
        microseconds = max(1000, round(cores * _PERIOD_US))
        if self.version == 2:
            (self.path / "cpu.max").write_text(f"{microseconds} {_PERIOD_US}", encoding="ascii")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US), encoding="ascii")
            (self.path / "cpu.cfs_quota_us").write_text(str(microseconds), encoding="ascii")

    def take(self, process: int) -> None:
        """Move a process, and all it will start, into the group."""
        (self.path / "cgroup.procs").write_text(str(process), encoding="ascii")

    def processes(self) -> list[int]:
        return [int(word) for word in (self.path / "cgroup.procs").read_text(encoding="ascii").split()]


@contextmanager
def quotas(devices: int, hierarchy: Hierarchy | None = None) -> Iterator[tuple[Quota, ...]]:
    """So many groups; whatever still runs in them when the block ends is killed, and they are removed.

    Groups carry the id of the process that made them: those of processes that are gone are removed first.
    """
    place = hierarchy or find_hierarchy()
    for left in place.path.glob("whalefl-*-*"):
        if not Path(f"/proc/{left.name.split('-')[1]}").exists():
            _remove(Quota(left, place.version))
    if place.version == 2:
        _delegate_cpu(place.path)
    groups = tuple(Quota(place.path / f"whalefl-{os.getpid()}-{index}", place.version) for index in range(devices))
    try:
        for group in groups:
            group.path.mkdir()
        yield groups
    finally:
        failures = [error for group in groups if group.path.exists() and (error := _removal(group)) is not None]
        if failures:
            raise failures[0]


def _delegate_cpu(path: Path) -> None:
    """Groups below this one get the cpu controller, where they have not got it yet."""
    control = path / "cgroup.subtree_control"
    if "cpu" not in control.read_text(encoding="ascii").split():
        control.write_text("+cpu", encoding="ascii")


def _removal(group: Quota) -> OSError | None:
    """Remove a group; what goes wrong must not keep the others from being removed."""
    try:
        _remove(group)
    except OSError as error:
        return error
    return None


def _remove(group: Quota) -> None:
    until = time.monotonic() + _PATIENCE_S
    while left := group.processes():
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    group.path.rmdir()
