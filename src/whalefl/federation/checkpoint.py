"""A run between two rounds, on disk: written whole or not at all, so that it can go on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from safetensors.torch import load, save
from torch import Tensor

from whalefl.federation.rounds import DeviceState, Federation, State
from whalefl.federation.simulation import first_state
from whalefl.runs import write_atomic
from whalefl.scheduling.policies import ServerMemory
from whalefl.values import DeviceReport

_HEAD = "whalefl"


@dataclass(frozen=True)
class Moment:
    """What a state holds beside its tensors."""

    round: int
    clock_s: float
    devices: tuple[DeviceState, ...]
    memory: ServerMemory
    reports: tuple[DeviceReport, ...]


def save_state(path: Path, state: State) -> None:
    moment = Moment(state.round, state.clock_s, state.devices, state.memory, state.reports)
    write_tensors(path, tensors_of(state), asdict(moment))


def load_state(path: Path, federation: Federation) -> State:
    """The state that was saved, its tensors where the federation's data is."""
    tensors, head = read_tensors(path)
    moment = TypeAdapter(Moment).validate_json(head)
    state = State(moment.round, moment.clock_s, {}, moment.devices, {}, moment.memory, moment.reports)
    return with_tensors(state, tensors, federation)


def tensors_of(state: State) -> dict[str, Tensor]:
    """The global model, and when each of its coordinates was last trained."""
    named = {"weights": state.weights, "trained": state.last_trained}
    return {f"{kind}/{name}": t.cpu().contiguous() for kind, tensors in named.items() for name, t in tensors.items()}


def with_tensors(state: State, tensors: Mapping[str, Tensor], federation: Federation) -> State:
    """The state with these tensors, laid out in memory as those of a run that was not interrupted."""
    first = first_state(federation)
    for kind, own in (("weights", first.weights), ("trained", first.last_trained)):
        for name, tensor in own.items():
            tensor.copy_(tensors[f"{kind}/{name}"])
    return replace(state, weights=first.weights, last_trained=first.last_trained)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], head: Mapping[str, Any]) -> None:
    """Tensors and plain values in one file."""
    write_atomic(path, save(dict(tensors), {_HEAD: json.dumps(head)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of such a file, and its plain values as JSON."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + length])["__metadata__"][_HEAD]
