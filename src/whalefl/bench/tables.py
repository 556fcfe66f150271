"""Results as tables: the cells once, then Markdown or the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whalefl.bench.floor import Rate
from whalefl.bench.memory import MemoryResult
from whalefl.bench.results import Machine, Result, Row


def header(result: Result) -> tuple[str, ...]:
    """The columns; recording steps and GPU memory only where there is a GPU."""
    names = ("variant", "seconds a round", "rounds/s", "samples/s", f"x {result.rows[0].variant}", "of the floor")
    return (*names, "set-up", "GPU memory") if result.machine.gpu else names


def cells(result: Result) -> list[tuple[str, ...]]:
    """The table's text, one tuple a row."""
    return [_cells(row) for row in result.rows]


def _cells(row: Row) -> tuple[str, ...]:
    figures = (
        row.variant,
        _spread(row.median_s, row.seconds),
        f"{row.rounds_per_s:.3g}",
        f"{row.samples_per_s:,.0f}",
        f"{row.ratio:.2f}",
        f"{100 * row.floor_share:.0f} %",
    )
    return figures if row.gpu_mb is None else (*figures, f"{row.setup_s:.1f} s", f"{row.gpu_mb:,.0f} MB")


def _spread(middle: float, seconds: Sequence[float]) -> str:
    return f"{_seconds(middle)} [{_seconds(min(seconds))}-{_seconds(max(seconds))}]"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def caption(result: Result) -> str:
    """What was measured, and the floor."""
    rates = ", ".join(f"{_where(result, rate)} {_rate(rate.flops_per_s)}" for rate in result.rates)
    others = "" if result.others is None else f" Other programs took {100 * result.others:.0f} % of the processors."
    floors = {row.floor_s: None for row in result.rows}
    return (
        f"{result.scenario}: {result.description}; {len(result.rows[0].seconds)} counted repeats. "
        f"{result.flops / 1e9:,.0f} GFLOP a round; matrix products meanwhile: {rates}; "
        f"floor: {' / '.join(_seconds(floor) for floor in floors)} s.{others}"
    )


def _where(result: Result, rate: Rate) -> str:
    threads = "1 thread" if rate.threads == 1 else f"{rate.threads} threads"
    return rate.precision if result.machine.gpu else f"{rate.precision} on {threads}"


def _rate(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:.0f} TFLOP/s" if flops_per_s >= 1e13 else f"{flops_per_s / 1e9:.0f} GFLOP/s"


def memory_header() -> tuple[str, ...]:
    return (
        "clients",
        "in a round",
        "shapes",
        "before",
        "data beyond",
        "code beyond",
        "model x (levels + workers)",
        "of models in training",
    )


def memory_cells(result: MemoryResult) -> list[tuple[str, ...]]:
    return [
        (
            f"{row.clients:,}",
            str(row.cohort),
            str(row.shapes),
            f"{row.before_mb:.0f} MB",
            f"{row.data_mb:.0f} MB",
            f"{row.code_mb:.0f} MB",
            f"{result.models_mb:.0f} MB",
            f"{result.training_mb:.0f} MB",
        )
        for row in result.rows
    ]


def memory_caption(result: MemoryResult) -> str:
    return (
        f"memory of the engine {result.engine}: {result.rounds} rounds of CNN@MNIST at {result.levels} levels, "
        f"a model of {result.model_mb:.1f} MB, workers: {result.workers}; a plain training loop of the whole "
        f"model takes {result.loop_mb:.0f} MB of data. One more client takes {result.client_kb:.1f} KB, "
        f"one more shape of stack {result.shape_mb:.1f} MB."
    )


def parts_header(result: MemoryResult) -> tuple[str, ...]:
    """The columns of what the data of each run consists of."""
    return ("data beyond is", *(f"{row.clients:,} clients" for row in result.rows))


def parts_cells(result: MemoryResult) -> list[tuple[str, ...]]:
    runs = [result.parts(row) for row in result.rows]
    return [(name, *(f"{parts[name]:.1f} MB" for parts in runs)) for name in runs[0]]


def peer_header(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns beside other simulators, whose rows come as read from JSON."""
    return ("contestant", "seconds a round", *(f"x {peer}" for peer in rows[0]["ratios"]))


def peer_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (row["contestant"], _spread(row["median_s"], row["seconds"]), *(f"{r:.2f}" for r in row["ratios"].values()))
        for row in rows
    ]


def machine_text(machine: Machine) -> str:
    where = f"{machine.processor}, cores: {machine.cores}" if machine.gpu is None else machine.gpu
    return f"Measured on {where}, torch {machine.torch}"
