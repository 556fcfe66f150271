"""Write docs/performance.md from results/bench/*.json, so that no figure in it is typed by hand.

python benchmarks/performance_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from whalefl.bench.memory import read_memory
from whalefl.bench.results import read_results
from whalefl.bench.tables import (
    caption,
    cells,
    header,
    machine_text,
    memory_caption,
    memory_cells,
    memory_header,
    parts_cells,
    parts_header,
    peer_cells,
    peer_header,
)
from whalefl.markdown import grid

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "results" / "bench"

TEXT = """# How fast it is

Written by `python benchmarks/performance_page.py` from the files that the commands below leave in `results/bench`.

## What is measured
A round: from the global model to the next one, all clients trained and averaged, nothing evaluated. Images are random,
in the form of the data set, since the time does not depend on the pixels. Variants take turns (A, B, C, A, B, C, ...)
within one process, so that a machine whose speed drifts is as unkind to one as to the other; the first turn warms up
and is not counted. Seconds are medians with the smallest and largest; a ratio is the median over the turns, each
against the same turn of the variant in the table's first line.

The **floor** is the FLOPs of the round, counted by torch on the model at every width, over the rate of one large
matrix product in the variant's precision (on a CPU on both cores, by oneDNN, which on some processors is twice as fast
as torch's `@`), measured before every round of turns, of which the best counts. "Of the floor" is the floor over the
median: at 100 % a round would be as fast as the hardware multiplies matrices, with nothing else to do. Small slices
stay far from it: their operations are over sooner than they are started. The plain loop measures no Fisher information,
so where the others do it has less to do, and a lower floor.

| variant | what it is |
|---|---|
| `plain-loop` | the ordinary way: one client after another, new model objects, a DataLoader, two threads |
| `plain` | the engine in this process, on one thread |
| `workers`, `workers-bf16` | the engine in one pinned process for each of two cores |
| `eager` | that engine on a GPU, one client after another |
| `graphs`, `graphs-bf16` | the engine that replays recorded steps on a GPU |

`plain-loop` is [benchmarks/plain_loop.py](../benchmarks/plain_loop.py). It is a yardstick: it has a model of its own
and is not made faster.

## On two cores
`whalefl bench --repeats 9 --out results/bench/cpu.json` ([cpu.json](../results/bench/cpu.json))

{cpu}

### Without a compiler
On a processor batch norm, pool and ReLU are one operation in C++, and a step of SGD another
([native](../src/whalefl/native)): they go over memory as seldom as they can, which with two cores
counts twice, since both wait for the same memory. In fp32 and with AVX-512 so are the first block on grey images and
convolutions of images of few pixels, which leave out what the padding would be multiplied by. All are compiled by the
machine's own compiler (`$CXX`, or `c++`) the first time they are needed, in a few seconds, and kept in the user's
cache. Where there is no compiler torch's own operations take their place, with the same results but for rounding. By
`CXX= whalefl bench --scenario mixed --repeats 9 --out results/bench/cpu_uncompiled.json`
([cpu_uncompiled.json](../results/bench/cpu_uncompiled.json)), on the same machine:

{cpu_uncompiled}

### A whole run on two cores
The paper's testbed (CNN@MNIST, 20 devices, batches of 64, tuned settings) with an evaluation on the whole test set
after every round, and batch-norm statistics over 10,000 training images, from
`python benchmarks/whale_run.py --methods fedavg,whale` ([whale_run_cpu.json](../results/bench/whale_run_cpu.json)).
The target of 85 % is reached when five evaluations average at or above it, the last of which counts here:

{whale_run_cpu}

## Beside other simulators
`python benchmarks/peers/run.py` ([peers.json](../results/bench/peers.json)): the same rounds in Flower's simulation
and in pfl, each in an environment of its own, on the same two cores, with two workers of one thread. All contestants
are started and kept, and train a round in turn. A peer's round is the time between two of its own callbacks, so its
start is not counted. Flower runs its message API on Ray with one actor a core; pfl runs federated averaging on users
in memory, with one process a core by torchrun. Both train a plain CNN of the same shape without the scaler, in fp32.
`full` is 20 clients at width 1, `narrow` 100 clients at width 1/16; 10 iterations of 10.

{peers}

## On a GPU
All of this in one go, after the tests that need a GPU: `benchmarks/gpu.sh`.

`whalefl bench --device cuda --out results/bench/gpu.json` ([gpu.json](../results/bench/gpu.json)).
"Set-up" is what the first round took longer
than the later ones: recording the steps, and compiling the fused kernels if no run on this machine has done so yet
(20 s for the CNN, which the compiler keeps). GPU memory is what the variant reserves beyond the data.

{gpu}

A whole run of WHALE on MNIST with an evaluation after every round, from `python benchmarks/whale_run.py --device cuda`
([whale_run.json](../results/bench/whale_run.json)). Steps are recorded, and on a machine's first run compiled, when a
level is first met; the later rounds only replay them. (A first run also tries the kernels out before it records, which
compiles some; that stands under "without recording".)

{whale_run}

Rounds of several runs in one process (`--together`, from `python benchmarks/together.py`,
[together.json](../results/bench/together.json)): 20 clients at mixed widths fill the GPU already, and what is left to
gain is little. Several processes gain more, since they share the work of the processor too
([reproduction.md](reproduction.md#how-to-run-it)).

{together}

## What measuring Fisher information costs
`python benchmarks/fisher_cost.py` ([fisher_cpu.json](../results/bench/fisher_cpu.json)): the mixed rounds with Fisher
information on 2 of 10 mini-batches and without, in turn on the same engine. Its backward passes alone are 12 % of a
measured round's FLOPs.

{fisher_cpu}

On a GPU, with `--device cuda` ([fisher_cuda.json](../results/bench/fisher_cuda.json)):

{fisher_cuda}

## Memory
`whalefl bench --memory --out results/bench/memory.json` ([memory.json](../results/bench/memory.json)):
what a run takes at most beyond the process
with its imports and data, as the proportional share of memory of it and its workers, read every 20 ms. Every run has
the same number of clients in a round, and is a process of its own; nothing is evaluated. *Data* is memory that was
written to; *code* are pages of libraries' files as they are, which count less while other programs use them too.

The measure is model x (levels + workers), whatever the number of clients. Data is more than that if weights alone are
counted (the column of that name): two workers have weights, gradients and momentum of their own, which are six models,
and float64 sums. It is less if for each model what a plain loop of the whole model in fp32 takes by itself is counted
("of models in training": weights, gradients, momentum, activations, and what torch keeps for a step). All slices train
in the same memory, one stack after the other, so that levels take none of their own beside the widest.
Two things grow: a client takes so many KB once the data is dealt out, from the first run to the last; and for every
shape of stack (a level, and how many of its narrow slices train side by side) torch keeps prepared operations, around
which freed memory stays in pieces. There are at most two shapes of wide slices and eight of each narrow level, however
many clients: 20 clients are all in every round and meet five, 40 meet most of them. What a shape takes is worked out
from the first and the last run; the runs between show how well that holds. "What is left" is freed memory that the C
library keeps, pages that the first process no longer shares with its workers, and Python's own objects.

{memory}
"""

NOT_YET = "Not measured yet."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return grid([header, *rows]).rstrip()


def page(results: Path = RESULTS) -> str:
    """The page over whatever has been measured so far."""
    parts = {
        "cpu": _speed,
        "cpu_uncompiled": _speed,
        "gpu": _speed,
        "memory": _memory,
        "peers": _peers,
        "whale_run": _whale_run,
        "whale_run_cpu": _whale_run,
        "together": _together,
        "fisher_cpu": _fisher,
        "fisher_cuda": _fisher,
    }
    texts = {name: _part(results / f"{name}.json", render) for name, render in parts.items()}
    measured = {f"[{name}.json](../results/bench/{name}.json)": (results / f"{name}.json").exists() for name in parts}
    text = TEXT.format(**texts)
    for link, exists in measured.items():
        if not exists:  # a link must lead somewhere
            text = text.replace(f" ({link})", "")
    return text


def _part(path: Path, render: Callable[[Path], list[str]]) -> str:
    return "\n\n".join(render(path)) if path.exists() else NOT_YET


def _speed(path: Path) -> list[str]:
    blocks, before = [], None
    for result in read_results(path):
        if result.machine != before:
            blocks.append(f"{machine_text(result.machine)}.")
            before = result.machine
        blocks += [caption(result), _table(header(result), cells(result))]
    return blocks


def _memory(path: Path) -> list[str]:
    blocks = []
    for result in read_memory(path):
        blocks += [
            memory_caption(result),
            _table(memory_header(), memory_cells(result)),
            _table(parts_header(result), parts_cells(result)),
        ]
    return blocks


def _peers(path: Path) -> list[str]:
    blocks = []
    for result in json.loads(path.read_text(encoding="utf8"))["results"]:
        versions = ", ".join(result["versions"].values())
        blocks += [
            f"{result['work']}: {versions}; {len(result['rows'][0]['seconds'])} counted rounds each.",
            _table(peer_header(result["rows"]), peer_cells(result["rows"])),
        ]
    return blocks


def _fisher(path: Path) -> list[str]:
    run = json.loads(path.read_text(encoding="utf8"))
    row = (
        run["variant"],
        f"{run['without_s']:.3g}",
        f"{run['with_s']:.3g}",
        f"{100 * run['share_of_a_round']:.1f} %",
        str(run["repeats"]),
    )
    return [_table(("variant", "without (s)", "with (s)", "share of the measured round", "turns"), [row])]


WHALE_RUN = {
    "rounds": ("rounds", "{:.0f}"),
    "total_s": ("seconds in all", "{:.1f}"),
    "reached_round": ("the target is reached in round", "{:.0f}"),
    "reached_s": ("seconds until that is known", "{:.1f}"),
    "recording_s": ("of them recording and compiling", "{:.1f}"),
    "training_ms": ("training a round (ms)", "{:.1f}"),
    "training_without_recording_ms": ("without recording (ms)", "{:.1f}"),
    "evaluation_ms": ("evaluating (ms)", "{:.1f}"),
    "other_ms": ("the rest of a round (ms)", "{:.1f}"),
    "gpu_memory_mb": ("GPU memory (MB)", "{:,.0f}"),
    "mean_share": ("mean share of the model trained", "{:.0%}"),
}


def _whale_run(path: Path) -> list[str]:
    runs = json.loads(path.read_text(encoding="utf8"))["runs"]
    recorded = any(run["recordings"] for run in runs.values())
    rows = [
        (label, *(pattern.format(run[key]).replace("%", " %") for run in runs.values()))
        for key, (label, pattern) in WHALE_RUN.items()
        if (recorded or "recording" not in key) and all(run[key] is not None for run in runs.values())
    ]
    return [_table(("", *runs), rows)]


def _together(path: Path) -> list[str]:
    times = json.loads(path.read_text(encoding="utf8"))["ms a round"]
    runs = list(next(iter(times.values())))
    rows = [(name, *(f"{ms:.1f}" for ms in own.values())) for name, own in times.items()]
    return [_table(("ms a round", *(f"{number} together" for number in runs)), rows)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
