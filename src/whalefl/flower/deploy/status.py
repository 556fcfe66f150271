"""`whalefl deploy status`: where a federation stands, read from the server's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whalefl.errors import WhaleflError
from whalefl.flower.folders import ServerFolder
from whalefl.flower.journal import EVENTS, STATUS
from whalefl.lock import is_held
from whalefl.runs import FINISHED

_LATEST = 5


def status_lines(folder: ServerFolder) -> list[str]:
    """What there is to say, a line each."""
    folder.settings()
    path, serving = folder.run / STATUS, folder.home.exists() and is_held(folder.home)
    if not path.exists():
        return [f"no device has joined yet; the server is {'running' if serving else 'not running'}"]
    try:
        status: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise WhaleflError(f"{path} cannot be read") from error
    accuracy = "not scored yet" if status["accuracy"] is None else f"{100 * status['accuracy']:.1f} %"
    stopped = "" if serving or status["state"] == FINISHED else "the server is not running; it was "
    lines = [
        f"{stopped}{status['state']} (as of {status['time']})",
        f"round           {status['round']} of {status['rounds']}, {status['time_s']:.0f} s",
        f"accuracy        {accuracy}",
        f"online          {status['online']} devices",
    ]
    for device in status["devices"]:
        took = "" if device["exchange_s"] is None else f", last exchange {device['exchange_s']:.1f} s"
        away = {"away": ", not connected", "busy": ", has yet to answer"}.get(device.get("there", ""), "")
        lines.append(f"device {device['device']:<8} wants level {device['level']}{took}{away}")
    counts = ", ".join(f"{number} {what}" for what, number in sorted(status["counts"].items()))
    lines.append(f"events          {counts or 'none'}")
    return lines + _latest(folder.run / EVENTS)


def _latest(path: Path) -> list[str]:
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()[-_LATEST:]]
    return [f"  round {e['round']}: device {e['device']} {e['what']}: {e['why']}" for e in events]
