"""whalefl beside Flower's simulation and pfl: the same rounds, taken in turns on the same two cores.

python benchmarks/peers/run.py [--work full,narrow] [--contestants ...] [--repeats 5] [--envs FOLDER] [--out FILE]

Each peer is installed into an environment of its own. All contestants are started and kept; then they train a round in
turn, the first of which is not counted. Ratios are medians over the turns, each against the same turn of the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import venv
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_cache_path
from work import CORES, WORKS

from whalefl.bench.results import SCHEMA, this_machine
from whalefl.bench.tables import peer_cells, peer_header
from whalefl.bench.timing import Timing, ratio
from whalefl.markdown import grid

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "results" / "bench" / "peers.json"
TORCH = "torch==2.13.0"
PEERS = {"pfl": "pfl[pytorch]==0.6.0", "flower": "flwr[simulation]==1.41.0"}
OURS = ("workers", "workers-bf16")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Row:
    """One contestant: its seconds a round, and how many times faster than each peer it is."""

    contestant: str
    seconds: tuple[float, ...]
    median_s: float
    ratios: dict[str, float]


class Contestant:
    """A process that trains a round whenever it is told to, and says how long it took."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.log = name, log
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            cwd=HERE,
            env={**os.environ, **QUIET, "PYTHONPATH": str(HERE)},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES]),
        )

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever is left of it ends, with all it has started."""
        try:
            self.process.wait(timeout=0 if sys.exc_info()[0] else 60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGTERM)

    def answer(self, word: str) -> str:
        """The rest of the next line that begins with a word; anything else it prints is its own affair."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise SystemExit(f"{self.name} ended before its time; see {self.log}")

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.answer("SECONDS"))


def command_of(name: str, work: str, rounds: int, envs: Path) -> list[str]:
    if name in OURS:
        return [sys.executable, "with_whalefl.py", work, str(rounds), name]
    folder = envs / name / "bin"
    if name == "pfl":
        return [str(folder / "torchrun"), "--nproc_per_node", str(CORES), "with_pfl.py", work, str(rounds)]
    return [str(folder / "python"), "with_flower.py", work, str(rounds)]


def install(name: str, envs: Path) -> None:
    """The peer's environment, unless it is there already."""
    folder = envs / name
    if (folder / "installed").exists():
        return
    print(f"installing {PEERS[name]} into {folder}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, PEERS[name], TORCH], check=True)
    (folder / "installed").touch()


def compete(work: str, names: list[str], repeats: int, envs: Path, logs: Path) -> list[Row]:
    """One round each in turn, over and over."""
    with ExitStack() as stack:
        contestants = []
        for name in names:
            command = command_of(name, work, repeats + 1, envs)
            contestants.append(stack.enter_context(Contestant(name, command, logs / f"{work}-{name}.log")))
            contestants[-1].answer("READY")
        turns = [[contestant.round() for contestant in contestants] for _ in range(repeats + 1)]
    timings = {
        name: Timing(first, tuple(rest)) for name, (first, *rest) in zip(names, zip(*turns, strict=True), strict=True)
    }
    peers = [name for name in names if name in PEERS]
    return [
        Row(
            contestant=name,
            seconds=timing.seconds,
            median_s=timing.median_s,
            ratios={peer: ratio(timings[peer].seconds, timing.seconds) for peer in peers},
        )
        for name, timing in timings.items()
    ]


def chosen(text: str, known: list[str]) -> list[str]:
    wanted = text.split(",")
    unknown = set(wanted) - set(known)
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return [name for name in known if name in wanted]


def main() -> None:
    known = [*OURS, *PEERS]
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default=",".join(WORKS))
    parser.add_argument("--contestants", default=",".join(known))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--envs", type=Path, default=user_cache_path("whalefl") / "peers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    names, envs = chosen(arguments.contestants, known), arguments.envs.resolve()
    logs = envs / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in PEERS:
            install(name, envs)
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"results": []}
    results = {result["work"]: result for result in content["results"]}
    for work in chosen(arguments.work, list(WORKS)):
        rows = [asdict(row) for row in compete(work, names, arguments.repeats, envs, logs)]
        results[work] = {
            "work": work,
            "machine": asdict(this_machine("cpu")),
            "command": shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
            "versions": {name: PEERS[name] for name in names if name in PEERS},
            "rows": rows,
        }
        print(f"\n{work}: {WORKS[work]}\n\n{grid([peer_header(rows), *peer_cells(rows)])}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"schema": SCHEMA, "results": list(results.values())}, indent=2) + "\n")
    print(f"\nresults         {arguments.out}")


if __name__ == "__main__":
    main()
