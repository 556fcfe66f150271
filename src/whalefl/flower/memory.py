"""What a device keeps on disk, so that a restart loses neither its Fisher window nor its place in its data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from whalefl.errors import WhaleflError
from whalefl.federation.rounds import DeviceState
from whalefl.runs import write_json

Curve = tuple[tuple[float, float], ...]
"""Pairs of FLOPs and seconds per sample, in rising order."""


@dataclass(frozen=True)
class Memory:
    """A device between two messages.

    `before` and `after` are its states around round `round`, the last one it trained, so that the same round can be
    trained again from where it began. `wishes` are the levels it asked for, by round. `curve` is its own speed when
    idle, `nominal_mbps` its link as first measured, `sent_bytes` the size of its last reply, and `held_s` the time
    between message and reply.
    """

    terms: str
    round: int = 0
    before: DeviceState = field(default_factory=DeviceState)
    after: DeviceState = field(default_factory=DeviceState)
    wishes: dict[int, int] = field(default_factory=dict)
    curve: Curve | None = None
    nominal_mbps: float | None = None
    sent_bytes: int = 0
    held_s: float = 0.0

    def state_for(self, round: int) -> DeviceState:
        """The state in which a round begins: that before the last round if it is the same one again."""
        return self.before if round == self.round else self.after


def load_memory(path: Path, terms: str) -> Memory:
    """What is on disk; a device that begins, or that joined another federation before, begins anew."""
    if not path.exists():
        return Memory(terms)
    try:
        memory = TypeAdapter(Memory).validate_json(path.read_text(encoding="utf8"))
    except (ValidationError, ValueError) as error:
        raise WhaleflError(f"{path} cannot be read; remove it to let the device begin anew") from error
    return memory if memory.terms == terms else Memory(terms)


def save_memory(path: Path, memory: Memory) -> None:
    write_json(path, asdict(memory))
