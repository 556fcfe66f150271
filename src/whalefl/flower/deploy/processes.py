"""Processes that a supervisor starts, reads and ends: Flower's own, and the resident worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

from whalefl.errors import WhaleflError
from whalefl.flower import QUIET

_GRACE_S = 5.0
_LEFT_S, _POLL_S = 2.0, 0.1
_FREED_S = 15.0
"""So long it may take until all that a killed supervisor had started is gone."""
_ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LEASH = (
    "import os, sys; from whalefl.leash import die_with_parent; die_with_parent(); os.execvp(sys.argv[1], sys.argv[1:])"
)


def program(name: str) -> str:
    """A program that was installed beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise WhaleflError(f"{name} is not installed; it must be: pip install '.[flower]' in whalefl's folder")
    return str(path)


def flower_environment(home: Path) -> dict[str, str]:
    """The environment for Flower's processes: quiet, with settings and caches in a folder of their own.

    The programs beside this Python come first, since Flower starts some of them by name.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1"}


class Child:
    """A process whose output goes to a log, line by line, and to `listen`.

    It leads a group of processes, in which what it starts is too unless it takes care of that itself (as a SuperLink
    does, whose apps look for it and end with it).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        listen: Callable[[str], None] | None = None,
    ) -> None:
        self.name, self._listen = name, listen
        self.process = subprocess.Popen(
            leashed(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            text=True,
            errors="replace",
            process_group=0,
        )
        assert self.process.stdout is not None
        self._reader = Thread(target=self._read, args=(self.process.stdout, log), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str], log: Path) -> None:
        with stream, log.open("a", encoding="utf8") as file:
            for line in stream:
                with suppress(OSError):  # a full disk: if nobody read on, the process would wait for ever
                    file.write(f"[{self.name}] {line}")
                    file.flush()
                    if self._listen is not None:
                        self._listen(line)

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self.process.poll()

    def end(self) -> None:
        """Ask the process to end, and make it if it does not, with whatever it started."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
        self._end_group()
        self.process.wait()
        self._reader.join(_GRACE_S)

    def _end_group(self) -> None:
        """An app of Flower's that is fetching its message when its SuperNode ends would go on asking for ever."""
        give_up = time.monotonic() + _LEFT_S
        with suppress(ProcessLookupError, PermissionError):  # there is nobody left in it
            while self.process.poll() is not None and time.monotonic() < give_up:
                os.killpg(self.process.pid, 0)
                time.sleep(_POLL_S)
            os.killpg(self.process.pid, signal.SIGKILL)


def leashed(command: Sequence[str]) -> list[str]:
    """The command so that it ends with its supervisor, however that ends."""
    return [sys.executable, "-c", _LEASH, *command]


def run_quietly(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float = 60.0) -> str:
    """Run a short command to its end; its output is returned, and logged."""
    done = subprocess.run(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    text = done.stdout + done.stderr
    with log.open("a", encoding="utf8") as file:
        file.write(f"[{Path(command[0]).name}] {text}")
    if done.returncode:
        raise WhaleflError(f"{Path(command[0]).name} {command[1]} failed: {' '.join(text.split())[-300:]}")
    return text


def listens(port: int) -> bool:
    """Whether anybody listens on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def freed(port: int, patience_s: float = _FREED_S) -> bool:
    """Whether nobody listens on a port, or ceases to while one waits."""
    until = time.monotonic() + patience_s
    while listens(port):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def end_on_signals() -> None:
    """Let SIGTERM, SIGHUP and Ctrl-C (which a shell may have switched off) end this process in good order."""

    def stop(_number: int, _frame: object) -> None:
        for number in _ENDINGS:  # one is enough: what is being taken down must not be interrupted
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _ENDINGS:
        signal.signal(number, stop)
