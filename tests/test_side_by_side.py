"""Work in processes side by side: whoever fails, is ended or is killed, nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whalefl.side_by_side import side_by_side

LONG = "x" * 10_000  # more than anybody reads fills a pipe


def busy(folder: str, listener: Callable[[str, Any], None]) -> None:
    """Report for a minute, and note how it ended; or fail soon, if the folder is called so."""
    place = Path(folder)
    (place / "pid").write_text(str(os.getpid()))
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            listener(folder, LONG)
            if place.name == "failing" and (place.parent / "going" / "pid").exists():
                raise ValueError("as it was meant to")
    except KeyboardInterrupt:
        (place / "interrupted").touch()
        raise


def folders(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
    return [str(tmp_path / name) for name in names]


def carry_out(places: list[str], listener: Callable[[str, Any], None]) -> None:
    upcoming = iter(places)
    for _ in side_by_side(busy, lambda: next(upcoming, None), len(places), listener):
        pass


def test_when_one_fails_the_others_are_interrupted_and_can_say_so(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match="as it was meant to"):
        carry_out(folders(tmp_path, "going", "failing"), lambda name, record: None)
    assert (tmp_path / "going" / "interrupted").exists()
    assert time.monotonic() - start < 50  # they would go on for a minute


def test_who_has_nothing_left_to_do_does_not_keep_the_others_from_putting_down(tmp_path: Path) -> None:
    """A worker that is idle ends at once, and the pool then calls all work failed."""
    upcoming = iter(folders(tmp_path, "done", "going", "failing"))
    with pytest.raises(ValueError, match="as it was meant to"):
        for _ in side_by_side(busy_or_done, lambda: next(upcoming, None), 3, lambda name, record: None):
            pass
    assert (tmp_path / "going" / "interrupted").exists()


def busy_or_done(folder: str, listener: Callable[[str, Any], None]) -> None:
    if Path(folder).name != "done":
        time.sleep(1.0)  # the other is idle by then
        busy(folder, listener)


def test_a_listener_that_fails_is_raised_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    def listener(name: str, record: object) -> None:
        raise KeyError("nobody listens")

    with pytest.raises(ValueError, match="as it was meant to"):
        carry_out(folders(tmp_path, "going", "failing"), listener)
    with pytest.raises(KeyError, match="nobody listens"):
        upcoming = iter([[1], [2]])
        for _ in side_by_side(say, lambda: next(upcoming, None), 2, listener):
            pass


def say(_one: list[int], listener: Callable[[str, Any], None]) -> None:
    listener("said", LONG)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parents")
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    places = folders(tmp_path, "one", "two")
    script = (
        f"import test_side_by_side as t\nif __name__ == '__main__': t.carry_out({places!r}, lambda name, record: None)"
    )
    (tmp_path / "start.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, str(tmp_path / "start.py")]
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    pids = [wait_for(Path(place) / "pid") for place in places]
    assert all(map(alive, pids))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def wait_for(path: Path) -> int:
    for _ in range(600):
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.1)
    raise AssertionError(f"{path} never came")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
