"""How long a device's last transfers took, as its supervisor saw them: Flower's SuperNode says when each begins and
ends, and nobody else on the device can tell.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from whalefl.runs import write_json

LINK_FILE = "link.json"
_RECEIVING = re.compile(r"Receiving: \S+ message \(ID: (\w+)\)")
_SENDING = re.compile(r"Sending: (\S+) message")


@dataclass(frozen=True)
class Transfers:
    """The seconds it took to receive the message with this id, and to send the last slice; 0 where not known."""

    message: str = ""
    down_s: float = 0.0
    up_s: float = 0.0


def read_transfers(path: Path) -> Transfers:
    """Empty ones where no supervisor writes them."""
    try:
        return TypeAdapter(Transfers).validate_json(path.read_text(encoding="utf8"))
    except (OSError, ValidationError):
        return Transfers()


class Stopwatch:
    """Reads the SuperNode's lines as they are written and keeps the transfers in a file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._transfers, self._since = read_transfers(path), 0.0
        self._sends_slice = False

    def listen(self, line: str) -> None:
        now = self._clock()
        if found := _RECEIVING.search(line):
            self._transfers, self._since = replace(self._transfers, message=found[1], down_s=0.0), now
        elif found := _SENDING.search(line):
            self._since, self._sends_slice = now, found[1] == "train"
        elif "Received successfully" in line:
            self._keep(replace(self._transfers, down_s=now - self._since))
        elif "Sent successfully" in line and self._sends_slice:
            self._keep(replace(self._transfers, up_s=now - self._since))

    def _keep(self, transfers: Transfers) -> None:
        self._transfers = transfers
        write_json(self._path, asdict(transfers))
