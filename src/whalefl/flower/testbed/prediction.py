"""What the simulator says about a federation on the testbed, and how far off it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from whalefl.config import Experiment
from whalefl.engines import make_engine
from whalefl.execution import prepared
from whalefl.federation.rounds import Federation
from whalefl.federation.simulation import rounds_of
from whalefl.fleet.devices import Fleet
from whalefl.fleet.latency import true_delay
from whalefl.flower.memory import Curve

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Gauge:
    """What was measured once of a device on the testbed, and is not changed afterwards: its speed and its overhead."""

    curve: Curve
    overhead_s: float


def gauged(experiment: Experiment, gauges: Sequence[Gauge]) -> Experiment:
    """The experiment on devices of these speeds and overheads."""
    groups = zip(experiment.fleet.groups, gauges, strict=True)
    fleet = tuple(replace(group, curve=g.curve, overhead_s=g.overhead_s, slowdown=1.0) for group, g in groups)
    return replace(experiment, fleet=Fleet(fleet))


def gauges_from(federation: Federation, curves: Sequence[Curve], records: Sequence[Record]) -> list[Gauge]:
    """Speeds and overheads from the records of a gauging run, the curves being what devices measured when idle.

    A curve is scaled by the median of true over expected computing times; what remains of an exchange beyond
    computing and the transfer at the link's known rate is overhead, of which the median is taken.
    """
    gauges = []
    for member, curve in zip(federation.members, curves, strict=True):
        device, factors, overheads = replace(member.device, curve=curve), [], []
        for record in records:
            start_s = record["time_s"] - record["round_s"]
            for report in record["devices"]:
                if report["device"] != device.index:
                    continue
                work, true = member.works[report["level"] - 1], federation.sky.conditions(device, start_s)
                expected = true_delay(federation.settings.latency, federation.sky, device, work, true, start_s)
                computing_s = report["true"]["computing_s"]
                factors.append(computing_s / expected.computing_s)
                overheads.append(report["true"]["transmission_s"] - expected.transmission_s)
        factor = median(factors)
        scaled = tuple((flops, factor * seconds) for flops, seconds in curve)
        gauges.append(Gauge(scaled, max(0.0, median(overheads))))
    return gauges


def predicted_rounds(federation: Federation, records: Sequence[Record]) -> list[float]:
    """The length of every round as the simulator would have it: from its levels and the sky at its beginning."""
    return [_predicted(federation, record) for record in records]


def _predicted(federation: Federation, record: Record) -> float:
    start_s, longest = record["time_s"] - record["round_s"], 0.0
    for report in record["devices"]:
        member = federation.members[report["device"]]
        work = member.works[report["level"] - 1]
        true = federation.sky.conditions(member.device, start_s)
        delay = true_delay(federation.settings.latency, federation.sky, member.device, work, true, start_s)
        longest = max(longest, delay.total_s + member.device.overhead_s)
    return longest


@dataclass(frozen=True)
class Errors:
    """How far predictions of round lengths were off, relative to what happened."""

    rounds: int
    median: float
    worst_tenth: float


def errors_of(predicted: Sequence[float], records: Sequence[Record]) -> Errors:
    off = [abs(p - record["round_s"]) / record["round_s"] for p, record in zip(predicted, records, strict=True)]
    return Errors(len(off), float(np.median(off)), float(np.quantile(off, 0.9)))


def time_to_target(records: Sequence[Record], target: float) -> float | None:
    """When a run first scored the target."""
    return next(
        (r["time_s"] for r in records if r["accuracy"] is not None and r["accuracy"] >= target),
        None,
    )


def simulated_time_to_target(experiment: Experiment, target: float) -> float | None:
    """The same, of the whole experiment in the simulator."""
    federation = prepared(experiment)
    with closing(make_engine(experiment, federation.task)) as engine:
        for finished in rounds_of(federation, engine):
            if finished.record.accuracy is not None and finished.record.accuracy >= target:
                return finished.record.time_s
    return None
