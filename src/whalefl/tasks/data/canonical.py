"""The one form that everything else is turned into: a single safetensors file, with the notes in its header."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save

from whalefl.runs import write_atomic
from whalefl.tasks.data.datasets import Arrays, Dataset

KEY = "whalefl"


def canonical_name(name: str) -> str:
    return f"{name}.safetensors"


@dataclass(frozen=True)
class Header:
    """What a file says of itself; `origin` is the fingerprint of the files it was made from."""

    notes: tuple[str, ...]
    origin: str


def write(path: Path, dataset: Dataset, origin: str = "") -> None:
    about = {"notes": dataset.notes, "origin": origin}
    # One key, since safetensors writes several in any order, and equal data should give equal files.
    write_atomic(path, save(dataset.arrays, {KEY: json.dumps(about)}))


def read_header(path: Path) -> Header:
    with safe_open(path, framework="numpy") as file:
        about = json.loads((file.metadata() or {})[KEY])
    return Header(tuple(map(str, about["notes"])), str(about["origin"]))


def read_arrays(path: Path) -> Arrays:
    with safe_open(path, framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
