"""`whalefl deploy device`: the resident worker and Flower's SuperNode, started again whenever one of them dies."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from whalefl.errors import WhaleflError, require
from whalefl.flower.deploy.keys import is_authority, is_device_key
from whalefl.flower.deploy.processes import Child, end_on_signals, flower_environment, freed, program
from whalefl.flower.folders import DEVICE, DeviceFolder, DeviceSettings
from whalefl.flower.relay import socket_path
from whalefl.flower.stopwatch import LINK_FILE, Stopwatch
from whalefl.lock import only_one

log = logging.getLogger("whalefl.deploy")
WORKER = "whalefl.flower.worker"
_POLL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_SETTLED_S = 60.0
"""A process that ran for so long had started well: the next pause is a short one again."""
_MISTAKE = 2
"""The exit code of a worker that cannot be helped by starting it again."""
_PATIENCE_S = 5.0


class Kept:
    """A process that is started again after a pause when it ends; pauses grow while it does not settle."""

    def __init__(self, name: str, start: Callable[[], Child], told_in: Path) -> None:
        self.name, self._start, self._told_in = name, start, told_in
        self.child, self._started = start(), time.monotonic()
        self._pause_s, self._again_at = _FIRST_PAUSE_S, 0.0

    def tend(self) -> int | None:
        """Look after the process; returns its exit code at the moment it is found to have ended."""
        now, code = time.monotonic(), self.child.code
        if code is None:
            return None
        if not self._again_at:
            settled = now - self._started > _SETTLED_S
            self._pause_s = _FIRST_PAUSE_S if settled else min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._again_at = now + self._pause_s
            again = "starting it again in %.0f s; the end of %s says why"
            log.warning(f"%s ended with %d; {again}", self.name, code, self._pause_s, self._told_in)
            return code
        if now >= self._again_at:
            self.child.end()
            self.child, self._started, self._again_at = self._start(), now, 0.0
        return None


def run_device(folder: DeviceFolder) -> None:
    """Be a device until told to stop; what no second try would mend is said at once."""
    end_on_signals()
    settings = folder.settings()
    with only_one(folder.path, _PATIENCE_S):
        _check(folder, settings)
        _keep_up(folder, settings)


def _check(folder: DeviceFolder, settings: DeviceSettings) -> None:
    require(is_authority(folder.authority), folder.authority.name, str(folder.authority), "as `deploy init` made it")
    require(is_device_key(folder.key), folder.key.name, str(folder.key), "as `deploy init` made it")
    free = freed(settings.port)
    require(free, "port", settings.port, f"free on 127.0.0.1, or another one in {folder.path / DEVICE}")


def _keep_up(folder: DeviceFolder, settings: DeviceSettings) -> None:
    worker_socket = socket_path(folder.path)
    watch = Stopwatch(folder.path / LINK_FILE)
    supernode_command = [
        *(program("flower-supernode"), "--superlink", settings.server),
        *("--root-certificates", str(folder.authority.resolve())),
        *("--auth-supernode-private-key", str(folder.key.resolve()), "--port", str(settings.port)),
        *("--node-config", f'socket="{worker_socket}" chunk-kb={settings.chunk_kb}'),
    ]
    environment = flower_environment(folder.path.resolve() / "flower")

    def start_worker() -> Child:
        command = [sys.executable, "-m", WORKER, str(folder.path)]
        return Child("worker", command, folder.log)

    def start_supernode() -> Child:
        return Child("supernode", supernode_command, folder.log, environment, watch.listen)

    kept: list[Kept] = []
    try:
        kept = [Kept("the worker", start_worker, folder.log), Kept("the SuperNode", start_supernode, folder.log)]
        log.info("device %d is up; its log is %s", settings.device, folder.log)
        while True:
            if kept[0].tend() == _MISTAKE:
                raise WhaleflError(f"the worker refuses to start; see the end of {folder.log}")
            kept[1].tend()
            time.sleep(_POLL_S)
    finally:
        for process in kept:
            process.child.end()
        worker_socket.unlink(missing_ok=True)
