"""What a benchmark leaves: plain values in one JSON file, every scenario with the machine and command behind it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from whalefl.bench.floor import Rate
from whalefl.errors import WhaleflError
from whalefl.runs import write_json

SCHEMA = 1


@dataclass(frozen=True)
class Machine:
    """What it ran on."""

    processor: str
    cores: int
    gpu: str | None
    torch: str


@dataclass(frozen=True)
class Row:
    """One variant: its seconds a round, and what follows from them.

    `ratio` is how many times faster it is than the first variant; `floor_share` is the share of the floor's speed that
    it reaches. `setup_s` is what its first round took longer than the later ones, and `gpu_mb` the GPU memory it took.
    """

    variant: str
    seconds: tuple[float, ...]
    median_s: float
    rounds_per_s: float
    samples_per_s: float
    ratio: float
    floor_s: float
    floor_share: float
    setup_s: float
    gpu_mb: float | None


@dataclass(frozen=True)
class Result:
    """One scenario measured; `others` is the share of the processors that went to other programs meanwhile."""

    scenario: str
    description: str
    machine: Machine
    command: str
    others: float | None
    flops: float
    rates: tuple[Rate, ...]
    rows: tuple[Row, ...]


def this_machine(device: str) -> Machine:
    gpu = None if device == "cpu" else torch.cuda.get_device_name(device)
    return Machine(processor_name(), os.cpu_count() or 1, gpu, torch.__version__)


def processor_name() -> str:
    """The processor's own name and family where Linux tells them: virtual machines often hide the rest."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf8").splitlines() if path.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in told:
        return platform.processor() or platform.machine()
    family = f", family {told['cpu family']}" if "cpu family" in told else ""
    return told["model name"] + family


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Put results into a file; those of other scenarios that it already holds stay."""
    measured = {result.scenario: result for result in results}
    before = {result.scenario: result for result in read_results(path)} if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = {**before, **measured}
    write_json(path, {"schema": SCHEMA, "results": [asdict(result) for result in merged.values()]})


def read_results(path: Path) -> list[Result]:
    try:
        content = json.loads(path.read_text(encoding="utf8"))
        return [_result(entry) for entry in content["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WhaleflError(
            f"{path} cannot be read as results ({error}); it must be a file of `whalefl bench`"
        ) from None


def _result(entry: dict[str, Any]) -> Result:
    return Result(
        **{
            **entry,
            "machine": Machine(**entry["machine"]),
            "rates": tuple(Rate(**rate) for rate in entry["rates"]),
            "rows": tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in entry["rows"]),
        }
    )
