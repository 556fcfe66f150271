"""What happens beside the rounds: refusals, late and failed devices, one line each, and a status to look at."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from whalefl.runs import write_json
from whalefl.values import RoundRecord

if TYPE_CHECKING:  # whoever only reads a status needs no torch
    from whalefl.flower.peers import Peer

EVENTS, STATUS = "events.jsonl", "status.json"
log = logging.getLogger("whalefl.server")


class Journal:
    """The events of a run, and how many there were of each kind."""

    def __init__(self, folder: Path, counts: Mapping[str, int]) -> None:
        self.folder = folder
        self.counts = Counter(counts)

    def note(self, what: str, round: int, device: int | None, node: int | None, why: str) -> None:
        """Count an event and write it down."""
        self.counts[what] += 1
        when = datetime.now(UTC).isoformat(timespec="seconds")
        event = {"time": when, "what": what, "round": round, "device": device, "node": node, "why": why}
        with (self.folder / EVENTS).open("a", encoding="utf8") as file:
            file.write(json.dumps(event) + "\n")
        log.warning("round %d: %s (device %s): %s", round, what, device, why)

    def status(
        self,
        state: str,
        rounds: int,
        record: RoundRecord | None,
        peers: Iterable[Peer],
        connected: Set[int],
        busy: Set[int],
    ) -> None:
        """Replace the status by the present one; of the nodes some are connected, and some have yet to answer."""
        write_json(
            self.folder / STATUS,
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "state": state,
                "round": 0 if record is None else record.round,
                "rounds": rounds,
                "accuracy": None if record is None else record.accuracy,
                "time_s": 0.0 if record is None else record.time_s,
                "online": len(connected),
                "counts": dict(self.counts),
                "devices": [
                    {
                        "device": peer.device,
                        "level": peer.wish.level,
                        "exchange_s": peer.exchange_s,
                        "there": "away" if peer.node not in connected else "busy" if peer.node in busy else "ready",
                    }
                    for peer in sorted(peers, key=lambda peer: peer.device)
                ],
            },
        )
