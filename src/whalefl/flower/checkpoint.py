"""The server between two rounds, on disk: written whole or not at all, so that no round is lost or done twice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from whalefl.errors import WhaleflError
from whalefl.federation.checkpoint import read_tensors, tensors_of, with_tensors, write_tensors
from whalefl.federation.rounds import Federation, State
from whalefl.federation.simulation import first_state
from whalefl.flower.calibration import Calibration
from whalefl.runs import CHECKPOINT, RunFolder
from whalefl.scheduling.policies import Announcement, ServerMemory
from whalefl.values import DeviceReport, RoundRecord


@dataclass(frozen=True)
class Ledger:
    """What the server keeps beside the model.

    `announced` is what devices were told about the round that comes next; `record` is the last round's, which is in
    the metrics too unless the server was killed in between; `counts` are the replies refused, late and failed so far.
    """

    terms: str
    round: int
    clock_s: float
    memory: ServerMemory
    reports: tuple[DeviceReport, ...]
    calibration: Calibration
    announced: Announcement
    counts: dict[str, int]
    record: RoundRecord | None = None


def save_checkpoint(folder: Path, state: State, ledger: Ledger) -> None:
    write_tensors(folder / CHECKPOINT, tensors_of(state), asdict(ledger))


def load_checkpoint(folder: Path, federation: Federation, terms: str) -> tuple[State, Ledger] | None:
    """The state and ledger after the last finished round; None where no round was finished."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    tensors, head = read_tensors(path)
    ledger = TypeAdapter(Ledger).validate_json(head)
    if ledger.terms != terms:
        raise WhaleflError(
            f"{path} belongs to another federation.toml (mark {ledger.terms}, here {terms}); "
            "it must be the same, or the folder a new one"
        )
    # What devices remember stays on the devices.
    devices = first_state(federation).devices
    state = State(ledger.round, ledger.clock_s, {}, devices, {}, ledger.memory, ledger.reports)
    return with_tensors(state, tensors, federation), ledger


def mend_metrics(folder: RunFolder, ledger: Ledger) -> None:
    """Let the metrics hold exactly the rounds up to the checkpoint, whenever the server was killed."""
    folder.keep_rounds(ledger.round)
    last = max((record["round"] for record in folder.records()), default=0)
    if ledger.record is not None and last < ledger.round:
        folder.append(ledger.record)
