"""`whalefl bench`: how fast rounds are, and how much memory they take; a table and a JSON file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from whalefl.bench.measuring import measure
from whalefl.bench.memory import CLIENTS, ENGINES, ROUNDS, measure_memory, write_memory
from whalefl.bench.results import write_results
from whalefl.bench.scenarios import SCENARIOS
from whalefl.bench.tables import (
    caption,
    cells,
    header,
    memory_caption,
    memory_cells,
    memory_header,
    parts_cells,
    parts_header,
)
from whalefl.bench.variants import VARIANTS
from whalefl.cli.options import repeating_command, words
from whalefl.cli.tables import print_table
from whalefl.errors import require, require_one_of
from whalefl.execution import check_device

RESULTS = Path("runs") / "bench"
"""Not where the published figures are, which a quick look must not replace."""


def bench_speed(
    device: str, scenarios: str | None, variants: str | None, repeats: int, iterations: int | None, out: Path | None
) -> None:
    require(repeats >= 1, "repeats", repeats, "at least 1")
    check_device(device)
    known, competitors = SCENARIOS[device], VARIANTS[device]
    chosen = [known[name] for name in _names("scenario", scenarios, known)]
    taking_part = [competitors[name] for name in _names("variants", variants, competitors)]
    if iterations is not None:
        require(iterations >= 1, "iterations", iterations, "at least 1")
        chosen = [replace(s, iterations=iterations, fisher=min(s.fisher, iterations)) for s in chosen]
    path = out if out is not None else RESULTS / ("cpu.json" if device == "cpu" else "gpu.json")
    command = repeating_command(new_folder=False)
    path.parent.mkdir(parents=True, exist_ok=True)  # what is wrong with it is said now, not after measuring
    for scenario in chosen:
        with _status() as say:
            result = measure(scenario, taking_part, repeats, device, command, say)
        write_results(path, [result])
        _show(header(result), cells(result), caption(result))
    print(f"results         {path}")
    print(f"repeat with     {command}")


def bench_memory(variants: str | None, out: Path | None) -> None:
    path, command = out if out is not None else RESULTS / "memory.json", repeating_command(new_folder=False)
    engines, results = _names("variants", variants, ENGINES), []
    path.parent.mkdir(parents=True, exist_ok=True)
    for engine in engines:
        with _status() as say:
            say(f"memory: {engine}")
            results.append(measure_memory(engine, CLIENTS, ROUNDS, command))
        _show(memory_header(), memory_cells(results[-1]), memory_caption(results[-1]))
        print_table(parts_header(results[-1]), parts_cells(results[-1]))
    write_memory(path, results)
    print(f"results         {path}")
    print(f"repeat with     {command}")


def _names(option: str, text: str | None, known: Collection[str]) -> list[str]:
    """The names given, in the order in which they are known; all of them if none is given."""
    if text is None:
        return list(known)
    given = words(option, text)
    for name in given:
        require_one_of(option, name, known)
    return [name for name in known if name in given]


@contextmanager
def _status() -> Iterator[Callable[[str], object]]:
    """Where to say what is being done; silent when stderr is not a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def _show(names: Sequence[str], rows: Sequence[Sequence[str]], text: str) -> None:
    print(textwrap.fill(text, Console().width))
    print_table(names, rows)
