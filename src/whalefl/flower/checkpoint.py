"""The server between two rounds, on disk: written whole or not at all, so that no round is lost or done twice."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import load, save

from whalefl.errors import WhaleflError
from whalefl.federation.rounds import Federation, State
from whalefl.federation.simulation import first_state
from whalefl.flower.calibration import Calibration
from whalefl.runs import METRICS, write_atomic
from whalefl.scheduling.policies import Announcement, ServerMemory
from whalefl.values import DeviceReport, RoundRecord

CHECKPOINT = "checkpoint.safetensors"
_HEAD = "whalefl"


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
    tensors = {f"weights/{name}": tensor.contiguous() for name, tensor in state.weights.items()}
    tensors |= {f"trained/{name}": tensor.contiguous() for name, tensor in state.last_trained.items()}
    write_atomic(folder / CHECKPOINT, save(tensors, {_HEAD: json.dumps(asdict(ledger))}))


def load_checkpoint(folder: Path, federation: Federation, terms: str) -> tuple[State, Ledger] | None:
    """The state and ledger after the last finished round; None where no round was finished."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])["__metadata__"][_HEAD]
    ledger = TypeAdapter(Ledger).validate_json(head)
    if ledger.terms != terms:
        raise WhaleflError(
            f"{path} belongs to another federation.toml (mark {ledger.terms}, here {terms}); "
            "it must be the same, or the folder a new one"
        )
    tensors, first = load(content), first_state(federation)
    state = State(
        round=ledger.round,
        clock_s=ledger.clock_s,
        weights={name: tensors[f"weights/{name}"] for name in first.weights},
        devices=first.devices,
        last_trained={name: tensors[f"trained/{name}"] for name in first.last_trained},
        memory=ledger.memory,
        reports=ledger.reports,
    )
    return state, ledger


def mend_metrics(folder: Path, ledger: Ledger) -> None:
    """Let the metrics hold exactly the rounds up to the checkpoint, whenever the server was killed."""
    path = folder / METRICS
    lines = [line for line in path.read_text(encoding="utf8").splitlines(keepends=True) if line.endswith("\n")]
    kept = [line for line in lines if _round(line) <= ledger.round]
    if ledger.record is not None and (not kept or _round(kept[-1]) < ledger.round):
        kept.append(json.dumps(asdict(ledger.record), separators=(",", ":"), allow_nan=False) + "\n")
    write_atomic(path, "".join(kept).encode())


def _round(line: str) -> int:
    values: dict[str, Any] = json.loads(line)
    return int(values["round"])
