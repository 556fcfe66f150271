"""Exchanges with several devices at once, each with the server's own deadline: who is late holds nobody up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty

from whalefl.flower.journal import Journal
from whalefl.flower.peers import Peer
from whalefl.flower.transport import Arrival, Transport

_KINDS = {"train": "train", "gather": "evaluate", "judge": "evaluate"}
_SHORTEST_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Letter:
    """Something to say to a device; `most_bytes` bounds the tensors that may come back."""

    peer: Peer
    body: str
    block: bytes
    most_bytes: int


class Post:
    """What is on its way. `aside` is given every reply that is not waited for: what it answers, and the reply."""

    def __init__(
        self, transport: Transport, journal: Journal, deadline_s: float, aside: Callable[[str, Arrival], None]
    ) -> None:
        self.transport, self.journal, self.deadline_s, self._aside = transport, journal, deadline_s, aside
        self._pending: dict[str, tuple[str, int]] = {}  # tag -> what was asked, and of which node

    @property
    def busy(self) -> set[int]:
        """The nodes that have not answered yet, in time or not."""
        return {node for _, node in self._pending.values()}

    def send(self, node: int, what: str, round: int, body: str, block: bytes, most_bytes: int) -> str:
        patience_s = max(_SHORTEST_PATIENCE_S, 2 * self.deadline_s)
        kind = _KINDS.get(what, "query")
        tag = self.transport.send(node, kind, round, body, block, patience_s, most_bytes)
        self._pending[tag] = (what, node)
        return tag

    def attend(self, seconds: float) -> None:
        """Deal with whatever comes, for so long."""
        until = time.monotonic() + seconds
        while (heard := self._next(until)) is not None:
            self._aside(*heard)

    def exchange(
        self, what: str, round: int, letters: Sequence[Letter], take: Callable[[Letter, Arrival], None]
    ) -> None:
        """Send all letters, and hand every good reply to `take` until all are there or the deadline passes.

        Refused, failed and late ones are counted and left out.
        """
        left = {self.send(one.peer.node, what, round, one.body, one.block, one.most_bytes): one for one in letters}
        until = time.monotonic() + self.deadline_s
        while left and (heard := self._next(until)) is not None:
            asked, arrival = heard
            letter = left.pop(arrival.tag, None)
            if letter is None:
                self._aside(asked, arrival)
            elif arrival.error is None:
                take(letter, arrival)
            else:
                event = "refused" if arrival.refused else "failed"
                self.journal.note(event, round, letter.peer.device, arrival.node, arrival.error)
        for letter in left.values():
            why = f"no answer to {what} within {self.deadline_s:g} s"
            self.journal.note("late", round, letter.peer.device, letter.peer.node, why)

    def _next(self, until: float) -> tuple[str, Arrival] | None:
        try:
            arrival = self.transport.inbox.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            return None
        what, _ = self._pending.pop(arrival.tag)
        return what, arrival
