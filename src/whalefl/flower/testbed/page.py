"""The page that a testbed leaves beside its results: what was reached when, and how far off the simulator was."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from whalefl.flower.testbed.bench import Run
from whalefl.flower.testbed.prediction import Gauge
from whalefl.markdown import grid


def page(title: str, runs: Sequence[Run], gauges: Sequence[Gauge], cores: Sequence[float], command: str) -> str:
    """The whole page in Markdown."""
    devices = zip(range(len(gauges)), cores, gauges, strict=True)
    parts = [
        f"# {title}",
        "Wall-clock times of real federations in network namespaces, beside what the simulator says for the same\n"
        "weather. Round lengths are compared round by round at the levels that were chosen; speeds and overheads were\n"
        "measured once, before.",
        f"`{command}`",
        "## By method",
        grid([METHOD_HEADS, *method_rows(runs)]).rstrip(),
        "Means, with the least and the most. Round lengths: of the worst repeat.",
        "## Every run",
        grid([RUN_HEADS, *map(_run_row, runs)]).rstrip(),
        "## The devices as gauged",
        grid([GAUGE_HEADS, *(_gauge_row(*each) for each in devices)]).rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


METHOD_HEADS = ["method", "reached", "wall-clock (s)", "simulator (s)", "rounds", "round lengths off, median", "90th"]
RUN_HEADS = ["method", "repeat", "wall-clock (s)", "simulator (s)", "rounds", "round lengths off, median", "90th"]
GAUGE_HEADS = ["device", "cores", "overhead a round (s)", "ms a sample, whole model", "smallest slice"]


def method_rows(runs: Sequence[Run]) -> list[list[str]]:
    """The runs of every method together."""
    by_method = {run.method: [other for other in runs if other.method == run.method] for run in runs}
    return [_method_row(method, mine) for method, mine in by_method.items()]


def _method_row(method: str, runs: Sequence[Run]) -> list[str]:
    reached = [run.reached_s for run in runs if run.reached_s is not None]
    predicted = [run.predicted_s for run in runs if run.predicted_s is not None]
    return [
        method,
        f"{len(reached)} of {len(runs)}",
        _spread(reached),
        _spread(predicted),
        _spread([run.rounds for run in runs]),
        _percent(max(run.errors.median for run in runs)),
        _percent(max(run.errors.worst_tenth for run in runs)),
    ]


def _run_row(run: Run) -> list[str]:
    times = [_spread([time]) if time is not None else "not reached" for time in (run.reached_s, run.predicted_s)]
    off = [_percent(run.errors.median), _percent(run.errors.worst_tenth)]
    return [run.method, str(run.repeat), *times, str(run.rounds), *off]


def _gauge_row(device: int, cores: float, gauge: Gauge) -> list[str]:
    widest, narrowest = 1e3 * gauge.curve[-1][1], 1e3 * gauge.curve[0][1]
    return [str(device), f"{cores:g}", f"{gauge.overhead_s:.1f}", f"{widest:.2f}", f"{narrowest:.2f}"]


def _spread(values: Sequence[float]) -> str:
    """The mean, and the least and the most where there are several."""
    if not values:
        return "-"
    return f"{mean(values):.0f}" if len(values) == 1 else f"{mean(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
