"""A progress bar with the time left; silent when stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from whalefl.federation.settings import Settings
from whalefl.side_by_side import Listener
from whalefl.values import RoundRecord


def share_done(settings: Settings, record: RoundRecord) -> float:
    """How far a run is: whichever of its two ends, rounds or horizon, is nearer."""
    by_rounds = record.round / settings.rounds
    return min(1.0, max(by_rounds, record.time_s / settings.horizon_s if settings.horizon_s else 0.0))


@contextmanager
def progress_of(runs: Mapping[str, Settings]) -> Iterator[Listener]:
    """A listener that moves one bar for each run."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name, record: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        waiting = set(runs)
        bars = {name: progress.add_task(name, total=1.0, state="waiting", start=False) for name in runs}

        def listen(name: str, record: RoundRecord) -> None:
            if name in waiting:
                waiting.remove(name)
                progress.start_task(bars[name])
            accuracy = "" if record.accuracy is None else f", accuracy {100 * record.accuracy:.1f} %"
            state = f"round {record.round}, {record.time_s:.0f} virtual s{accuracy}"
            progress.update(bars[name], completed=share_done(runs[name], record), state=state)

        yield listen
