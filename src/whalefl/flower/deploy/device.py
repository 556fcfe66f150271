"""`whalefl deploy device`: the resident worker and Flower's SuperNode, started again whenever one of them dies."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from whalefl.errors import WhaleflError
from whalefl.flower.deploy.processes import Child, end_on_signals, flower_environment, program
from whalefl.flower.folders import DeviceFolder
from whalefl.flower.relay import socket_path
from whalefl.flower.stopwatch import LINK_FILE, Stopwatch

log = logging.getLogger("whalefl.deploy")
WORKER = "whalefl.flower.worker"
_POLL_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_SETTLED_S = 60.0
"""A process that ran for so long had started well: the next pause is a short one again."""
_MISTAKE = 2
"""The exit code of a worker that cannot be helped by starting it again."""


class Kept:
    """A process that is started again after a pause when it ends; pauses grow while it does not settle."""

    def __init__(self, name: str, start: Callable[[], Child]) -> None:
        self.name, self._start = name, start
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
            log.warning("%s ended with %d; starting it again in %.0f s", self.name, code, self._pause_s)
            return code
        if now >= self._again_at:
            self.child.end()
            self.child, self._started, self._again_at = self._start(), now, 0.0
        return None


def run_device(folder: DeviceFolder) -> None:
    """Be a device until told to stop."""
    end_on_signals()
    settings = folder.settings()
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
        kept = [Kept("the worker", start_worker), Kept("the SuperNode", start_supernode)]
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
