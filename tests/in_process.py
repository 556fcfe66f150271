"""A federation without a network: residents answered in this process, for tests of the two halves together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from queue import Queue

from whalefl.federation.rounds import Federation
from whalefl.flower.coordinator import Coordinator
from whalefl.flower.parties import federation_on_device
from whalefl.flower.relay import Parcel
from whalefl.flower.resident import Resident
from whalefl.flower.terms import Deployment, deployment_of
from whalefl.flower.transport import Arrival, Node
from whalefl.flower.worker import answer

Tamper = Callable[[int, Parcel], Arrival | Parcel | None]
"""May change what a device answers: another parcel, a whole arrival, or None for no answer at all."""


def digits_deployment(method: str = "heterofl", **more: object) -> Deployment:
    """Four devices of two kinds on digits, three short rounds."""
    groups = [{"kind": "MacBookPro2018", "count": 2}, {"kind": "JetsonTX2", "count": 2, "fixed_level": 3}]
    base = {
        "task": "digits",
        "method": method,
        "rounds": 3,
        "fleet": {"groups": groups},
        "training": {"iterations": 3, "batch": 16, "lr": 0.02},
        "federation": {"deadline_s": 20.0, "wait_s": 5.0},
    }
    return deployment_of([base, more])


class LocalTransport:
    """Answers every message at once, by the resident of its node."""

    def __init__(self, residents: dict[int, Resident], tamper: Tamper | None = None) -> None:
        self.residents, self.tamper = residents, tamper
        self.inbox: Queue[Arrival] = Queue()
        self.sent: list[tuple[int, str]] = []
        self._tags = count()

    def nodes(self) -> list[Node]:
        return [Node(node, f"device-{node}") for node in self.residents]

    def send(
        self, node: int, kind: str, round: int, body: str, block: bytes, patience_s: float, most_bytes: int
    ) -> str:
        tag = f"message-{next(self._tags)}"
        self.sent.append((node, kind))
        reply: Arrival | Parcel | None = answer(self.residents[node], Parcel(tag, body, block))
        if self.tamper is not None:
            assert isinstance(reply, Parcel)
            reply = self.tamper(node, reply)
        if isinstance(reply, Parcel):
            reply = Arrival(node, tag, 1.0, reply.body, reply.block)
        if reply is not None:
            self.inbox.put(replace(reply, node=node, tag=tag))
        return tag


_federations: dict[str, Federation] = {}


def federation_of(deployment: Deployment) -> Federation:
    """The same one for the same agreement: server and devices see the same data here."""
    if deployment.fingerprint not in _federations:
        _federations[deployment.fingerprint] = federation_on_device(deployment)
    return _federations[deployment.fingerprint]


def make_residents(deployment: Deployment, folder: Path) -> dict[int, Resident]:
    residents, federation = {}, federation_of(deployment)
    for index in range(len(deployment.experiment.fleet)):
        own = folder / f"device-{index}"
        own.mkdir(parents=True, exist_ok=True)
        residents[index] = Resident(deployment, federation, index, own)
    return residents


def make_coordinator(deployment: Deployment, folder: Path, tamper: Tamper | None = None) -> Coordinator:
    transport = LocalTransport(make_residents(deployment, folder), tamper)
    return Coordinator(deployment, federation_of(deployment), folder / "run", transport)
