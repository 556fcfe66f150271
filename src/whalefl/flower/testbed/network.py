"""A server and its devices on one machine: the commands a person would type, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from whalefl.errors import WhaleflError
from whalefl.flower.deploy.processes import leashed, program
from whalefl.flower.deploy.setup import create_federation
from whalefl.flower.folders import DeviceFolder, ServerFolder
from whalefl.flower.journal import EVENTS, STATUS
from whalefl.flower.terms import Deployment
from whalefl.runs import METRICS, RUN, RunFolder

_GRACE_S = 20.0
_POLL_S = 0.3


class Network:
    """The folders of a federation under `root`, and its running commands by name."""

    def __init__(self, root: Path, deployment: Deployment, host: str = "127.0.0.1") -> None:
        self.root, devices = root, len(deployment.experiment.fleet)
        port = free_ports(2 + devices)
        create_federation(root / "f", deployment, host, port, port + 1)
        self.server_folder = ServerFolder(root / "f" / "server")
        for index in range(devices):
            folder = self.device_folder(index)
            folder.write_settings(replace(folder.settings(), port=port + 2 + index))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def device_folder(self, index: int) -> DeviceFolder:
        return DeviceFolder(self.root / "f" / f"device-{index}")

    def start(self, name: str, command: Sequence[str]) -> int:
        """Start a command in a session of its own, which ends with this process at the latest; returns its id."""
        with (self.root / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                leashed(command),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.processes[name].pid

    def start_server(self) -> None:
        self.start("server", [program("whalefl"), "deploy", "server", str(self.server_folder.path)])

    def start_device(self, index: int, before: Sequence[str] = ()) -> int:
        """`before` is a command that runs another one somewhere else, e.g. in a namespace."""
        folder = str(self.device_folder(index).path)
        return self.start(f"device-{index}", [*before, program("whalefl"), "deploy", "device", folder])

    def kill(self, name: str) -> None:
        """kill -9 of a command and everything it started, itself first."""
        process = self.processes.pop(name)
        started = psutil.Process(process.pid).children(recursive=True) + _in_session(process.pid)
        process.kill()
        for one in started:
            with suppress(psutil.NoSuchProcess):  # it ended with what started it
                one.kill()
        process.wait()

    def stop(self) -> None:
        """End all commands, gently first."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for name, process in list(self.processes.items()):
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.kill(name)

    def records(self) -> list[dict[str, Any]]:
        folder = RunFolder(self.server_folder.run)
        return list(folder.records()) if (folder.path / METRICS).exists() else []

    def events(self) -> list[dict[str, Any]]:
        path = self.server_folder.run / EVENTS
        return [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()] if path.exists() else []

    def status(self) -> dict[str, Any] | None:
        path = self.server_folder.run / STATUS
        return json.loads(path.read_text(encoding="utf8")) if path.exists() else None

    def finished(self) -> bool:
        path = self.server_folder.run / RUN
        return path.exists() and json.loads(path.read_text(encoding="utf8"))["status"] == "finished"

    def wait_for(self, what: Callable[[], bool], seconds: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until something is so; raises with the ends of all logs if that takes too long or the server fails."""
        until = time.monotonic() + seconds
        while not what():
            if meanwhile is not None:
                meanwhile()
            server = self.processes.get("server")
            failed = server is not None and server.poll() not in (None, 0)
            if failed or time.monotonic() > until:
                raise WhaleflError(f"the federation {'failed' if failed else f'took over {seconds} s'}: {self.told()}")
            time.sleep(_POLL_S)

    def told(self) -> str:
        """The ends of all logs."""
        logs = [*self.root.glob("*.out"), *self.root.glob("f/*/*.log")]
        return "\n".join(f"--- {log}\n{log.read_text(encoding='utf8', errors='replace')[-2000:]}" for log in logs)


def _in_session(leader: int) -> list[psutil.Process]:
    """The processes of a session, also those whose parents have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader != process.pid:
                found.append(process)
    return found


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder that is gone when the block ends; its path is short, since those of sockets have to be.

    Folders hold keys and carry the id of the process that made them: those of processes that are gone go first.
    """
    for left in Path(tempfile.gettempdir()).glob("wfl-*-*"):
        if Path("/proc/self").exists() and not Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=f"wfl-{os.getpid()}-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def running(root: Path, deployment: Deployment, host: str = "127.0.0.1") -> Iterator[Network]:
    """A network whose commands are ended when the block is."""
    network = Network(root, deployment, host)
    try:
        yield network
    finally:
        network.stop()


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(20000 + os.getpid() % 2000 * 10, 60000, count):
        if all(_is_free(first + offset) for offset in range(count)):
            return first
    raise WhaleflError("no free ports are left on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
