"""Messages over Flower's grid: pushed to one device each, their replies put into one inbox as they come."""

from __future__ import annotations

import time
from dataclasses import dataclass
from queue import Queue
from threading import Thread
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from whalefl.flower.records import from_records, to_records
from whalefl.flower.refusal import Refused

_POLL_S = 0.4


@dataclass(frozen=True)
class Node:
    """A connected device as the network knows it, and the name its key is registered under."""

    id: int
    name: str


@dataclass(frozen=True)
class Arrival:
    """The reply to a message, or why there is none. `refused` marks a reply that was there but not as agreed."""

    node: int
    tag: str
    seconds: float
    body: str = ""
    block: bytes = b""
    error: str | None = None
    refused: bool = False


class Transport(Protocol):
    """What the server half of a round needs of a network."""

    inbox: Queue[Arrival]

    def nodes(self) -> list[Node]: ...

    def send(
        self, node: int, kind: str, round: int, body: str, block: bytes, patience_s: float, most_bytes: int
    ) -> str:
        """Send a message; returns the tag its arrival will carry. `most_bytes` bounds the block that may come back."""
        ...


class GridTransport:
    """A thread for each message waits for its reply, since pulling one that is half uploaded blocks."""

    def __init__(self, grid: Grid, chunk_bytes: int) -> None:
        self.grid, self.chunk_bytes = grid, chunk_bytes
        self.inbox: Queue[Arrival] = Queue()

    def nodes(self) -> list[Node]:
        return [Node(info.node_id, info.name) for info in self.grid.get_nodes()]

    def send(
        self, node: int, kind: str, round: int, body: str, block: bytes, patience_s: float, most_bytes: int
    ) -> str:
        content = to_records(body, block, self.chunk_bytes)
        message = Message(content, node, kind, ttl=patience_s, group_id=str(round))
        started = time.monotonic()
        (tag,) = self.grid.push_messages([message])
        waiting = Thread(target=self._wait, args=(node, tag, started, patience_s, most_bytes), daemon=True)
        waiting.start()
        return tag

    def _wait(self, node: int, tag: str, started: float, patience_s: float, most_bytes: int) -> None:
        """Put the reply into the inbox, or an error once it can no longer come."""
        while True:
            try:
                replies = list(self.grid.pull_messages([tag]))
            except Exception as error:  # whatever the network does, the round must go on without this device
                replies = []
                if time.monotonic() - started > patience_s:
                    self.inbox.put(Arrival(node, tag, time.monotonic() - started, error=str(error)[:200]))
                    return
            seconds = time.monotonic() - started
            if replies:
                self.inbox.put(_arrival(node, tag, seconds, replies[0], most_bytes))
                return
            if seconds > patience_s + 30:
                self.inbox.put(Arrival(node, tag, seconds, error="no reply"))
                return
            time.sleep(_POLL_S)


def _arrival(node: int, tag: str, seconds: float, reply: Message, most_bytes: int) -> Arrival:
    if reply.has_error():
        return Arrival(node, tag, seconds, error=f"{reply.error.reason or reply.error.code}"[:300])
    try:
        body, block = from_records(reply.content, most_bytes)
    except Refused as refusal:
        return Arrival(node, tag, seconds, error=str(refusal), refused=True)
    return Arrival(node, tag, seconds, body, block)
