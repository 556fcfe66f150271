"""`whalefl testbed`: methods on real processes under shaped links and quotas, beside what the simulator predicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from whalefl.config import Experiment, SeedChoice
from whalefl.errors import WhaleflError, require
from whalefl.execution import prepared
from whalefl.federation.methods import check_method
from whalefl.federation.rounds import Federation
from whalefl.fleet.devices import Fleet
from whalefl.flower.deploy.processes import end_on_signals
from whalefl.flower.memory import Curve, load_memory
from whalefl.flower.resident import MEMORY
from whalefl.flower.terms import Deployment, Terms
from whalefl.flower.testbed.namespaces import Ground, ground, why_not
from whalefl.flower.testbed.network import Network, running, short_folder
from whalefl.flower.testbed.prediction import (
    Errors,
    Gauge,
    Record,
    errors_of,
    gauged,
    gauges_from,
    predicted_rounds,
    simulated_time_to_target,
    time_to_target,
)
from whalefl.flower.testbed.quotas import Quota, quotas
from whalefl.flower.testbed.weathering import Site, Weathering
from whalefl.runs import write_json

RESULTS = "testbed.json"
_LONGEST_S = 3 * 3600.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to run: methods, in turn, `repeats` times; `cores` are the devices' shares of a core each."""

    methods: tuple[str, ...]
    repeats: int
    cores: tuple[float, ...]
    gauge_rounds: int

    def __post_init__(self) -> None:
        for method in self.methods:
            check_method(method)
        require(self.repeats >= 1, "repeats", self.repeats, "at least 1")
        require(self.gauge_rounds >= 2, "gauge_rounds", self.gauge_rounds, "at least 2")
        require(bool(self.cores) and min(self.cores) > 0, "cores", self.cores, "numbers above 0")


@dataclass(frozen=True)
class Run:
    """One method once: when it reached the target, what was predicted, and how far off round lengths were."""

    method: str
    repeat: int
    rounds: int
    reached_s: float | None
    predicted_s: float | None
    errors: Errors


@dataclass(frozen=True)
class Lab:
    """The ground and the quotas that all runs share: for each device one for its worker and one for the rest."""

    ground: Ground
    quotas: tuple[Quota, ...]
    worker_quotas: tuple[Quota, ...]
    cores: tuple[float, ...]


@contextmanager
def lab(cores: Sequence[float]) -> Iterator[Lab]:
    reason = why_not()
    if reason is not None:
        raise WhaleflError(f"there can be no testbed here: {reason}")
    devices = len(cores)
    with ground(devices) as built, quotas(2 * devices) as groups:
        yield Lab(built, groups[:devices], groups[devices:], tuple(cores))


def run_testbed(
    experiment: Experiment, terms: Terms, plan: Plan, folder: Path, say: Say
) -> tuple[list[Run], list[Gauge]]:
    """Gauge the devices, run every method in turn, and leave results and run folders in `folder`."""
    target = experiment.target
    if target is None:
        raise WhaleflError("target is not given; a testbed needs one: --set target=0.8")
    devices = len(plan.cores)
    require(len(experiment.fleet) == devices, "fleet", len(experiment.fleet), f"{devices} devices, as many as cores")
    terms = replace(terms, quorum=devices, stop_at_target=True)
    folder.mkdir(parents=True, exist_ok=True)
    end_on_signals()
    runs = []
    with lab(plan.cores) as place:
        gauges = gauge(place, experiment, terms, plan.gauge_rounds, folder, say)
        for repeat in range(1, plan.repeats + 1):
            for method in plan.methods:
                seeds = replace(experiment.seeds, weather=(experiment.seeds.weather or experiment.seed) + repeat)
                known = replace(gauged(experiment, gauges), method=method, seeds=seeds)
                say(f"{method}, repeat {repeat} of {plan.repeats} ...")
                records, _ = one_run(place, Deployment(known, terms), folder / f"{method}-{repeat}")
                runs.append(_judged(known, method, repeat, records, target))
                say(line_of(runs[-1]))
                write_json(folder / RESULTS, {"gauges": list(map(asdict, gauges)), "runs": list(map(asdict, runs))})
    return runs, gauges


def _judged(experiment: Experiment, method: str, repeat: int, records: Sequence[Record], target: float) -> Run:
    errors = errors_of(predicted_rounds(prepared(experiment), records), records)
    predicted_s = simulated_time_to_target(experiment, target)
    return Run(method, repeat, len(records), time_to_target(records, target), predicted_s, errors)


def line_of(run: Run) -> str:
    reached = "not reached" if run.reached_s is None else f"{run.reached_s:.0f} s"
    predicted = "not reached" if run.predicted_s is None else f"{run.predicted_s:.0f} s"
    return (
        f"{run.method:<10} repeat {run.repeat}: target after {reached} (predicted {predicted}), {run.rounds} rounds, "
        f"round lengths off by {100 * run.errors.median:.0f} % in the median, "
        f"{100 * run.errors.worst_tenth:.0f} % at the 90th percentile"
    )


def gauge(place: Lab, experiment: Experiment, terms: Terms, rounds: int, folder: Path, say: Say) -> list[Gauge]:
    """Measure every device once, under steady conditions and at levels drawn at random, then leave it at that."""
    say(f"gauging {len(place.cores)} devices in {rounds} rounds ...")
    steady = replace(experiment.weather, links=experiment.weather.links[:1], load_factor=1.0, fading=False)
    rare = replace(experiment.evaluation, every=rounds)
    trial = replace(experiment, method="prefix+random", rounds=rounds, weather=steady, evaluation=rare, target=None)
    deployment = Deployment(trial, replace(terms, stop_at_target=False))
    records, curves = one_run(place, deployment, folder / "gauging")
    gauges = gauges_from(prepared(trial), curves, records)
    for index, one in enumerate(gauges):
        widest, narrowest = 1e3 * one.curve[-1][1], 1e3 * one.curve[0][1]
        say(f"device {index}: overhead {one.overhead_s:.1f} s, {widest:.2f} ms a sample (smallest {narrowest:.2f} ms)")
    return gauges


def one_run(place: Lab, deployment: Deployment, keep: Path) -> tuple[list[dict[str, Any]], list[Curve]]:
    """A whole federation in the lab; its records, what each device measured of itself, and its run folder in `keep`."""
    with short_folder() as root:
        with running(root, deployment, place.ground.address) as network:
            network.start_server()
            for index, (spot, quota) in enumerate(zip(place.ground.places, place.quotas, strict=True)):
                for limited in (quota, place.worker_quotas[index]):
                    limited.set(place.cores[index])
                quota.take(network.start_device(index, spot.enter))
            federation = prepared(deployment.experiment)
            weathering = Weathering(federation.sky, _sites(place, federation), network.status)
            network.wait_for(network.finished, _LONGEST_S, weathering.apply)
            records = network.records()
            curves = [_curve(network, index, deployment) for index in range(len(place.cores))]
        shutil.rmtree(keep, ignore_errors=True)
        shutil.copytree(root / "f" / "server" / "run", keep)
    return records, curves


def _sites(place: Lab, federation: Federation) -> list[Site]:
    return [
        Site(member.device, place.ground.places[i], place.quotas[i], place.worker_quotas[i], place.cores[i])
        for i, member in enumerate(federation.members)
    ]


def _curve(network: Network, index: int, deployment: Deployment) -> Curve:
    memory = load_memory(network.device_folder(index).path / MEMORY, deployment.fingerprint)
    if memory.curve is None:
        raise WhaleflError(f"device {index} never measured itself")
    return memory.curve


@dataclass(frozen=True)
class Overhead:
    """Rounds with next to nothing in them, over loopback: what is left is Flower's own time."""

    devices: int
    rounds: int
    median_s: float
    least_s: float
    most_s: float


def measure_overhead(experiment: Experiment, terms: Terms, devices: int, rounds: int) -> Overhead:
    """Run rounds of one mini-batch at the smallest level, and drop the first, in which devices join."""
    smallest = experiment.ladder.levels
    groups = tuple(replace(group, count=1, fixed_level=smallest) for group in (experiment.fleet.groups[0],) * devices)
    empty = replace(
        experiment,
        method="heterofl",
        rounds=rounds + 1,
        fleet=Fleet(groups),
        target=None,
        seeds=SeedChoice(),
        training=replace(experiment.training, iterations=1, epochs=None),
        evaluation=replace(experiment.evaluation, every=rounds + 1),
    )
    end_on_signals()
    with short_folder() as root, running(root, Deployment(empty, replace(terms, quorum=devices))) as network:
        network.start_server()
        for index in range(devices):
            network.start_device(index)
        network.wait_for(network.finished, _LONGEST_S)
        lengths = [record["round_s"] for record in network.records()[1:]]
    return Overhead(devices, len(lengths), median(lengths), min(lengths), max(lengths))
