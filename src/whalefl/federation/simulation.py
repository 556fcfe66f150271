"""A whole training run with a virtual clock, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray

from whalefl.errors import Diverged, require
from whalefl.federation.engine import Engine, PlainEngine, train_all
from whalefl.federation.evaluation import calibration_indices
from whalefl.federation.methods import Method
from whalefl.federation.rounds import (
    DeviceState,
    Federation,
    Member,
    State,
    close_round,
    open_round,
)
from whalefl.federation.settings import Settings
from whalefl.fleet.devices import Device, Fleet
from whalefl.fleet.latency import Workload
from whalefl.fleet.weather import Sky, Weather
from whalefl.rng import Seeds
from whalefl.subnet.coverage import never_trained
from whalefl.tasks.costs import LevelCost, level_costs
from whalefl.tasks.partition import Share, split
from whalefl.tasks.task import Task
from whalefl.tasks.validation import with_validation
from whalefl.values import Profile, RoundRecord

_BITS = 32  # fp32 weights on the air


@dataclass(frozen=True, eq=False)
class Round:
    """One finished round: its record, and the state after it (`state.weights` is the global model)."""

    record: RoundRecord
    state: State


def simulate(
    task: Task,
    method: Method,
    fleet: Fleet | None = None,
    weather: Weather | None = None,
    settings: Settings | None = None,
    seeds: Seeds | None = None,
    engine: Engine | None = None,
) -> Iterator[Round]:
    """Train a task with a method over a fleet; yields every round as it ends. What is wrong is said at once."""
    settings, seeds = settings or Settings(), seeds or Seeds()
    if engine is not None:  # which was given the task as it is, and would train on examples that are held out
        on = settings.evaluation.on
        require(on == "test", "evaluation.on", on, "'test' where an engine is given")
    federation = assemble(task, method, fleet or Fleet(), weather or Weather(), settings, seeds)
    return rounds_of(federation, engine or PlainEngine(federation.task, settings.training))


def rounds_of(federation: Federation, engine: Engine) -> Iterator[Round]:
    """Train an assembled federation; yields every round as it ends."""
    for _, finished_round in rounds_together([federation], engine):
        if isinstance(finished_round, Diverged):
            raise finished_round
        yield finished_round


@dataclass(eq=False)
class Course:
    """A federation on its way."""

    federation: Federation
    calibration: NDArray[np.int64]
    state: State


def rounds_together(
    federations: Sequence[Federation], engine: Engine, states: Iterable[State] | None = None
) -> Iterator[tuple[int, Round | Diverged]]:
    """Train several federations, whose engine is one, round by round; yields whose round ended and the round.

    They share nothing but the engine's time, and begin in their first states, or go on from other ones. One that
    diverges ends, and the others go on.
    """
    begun = map(first_state, federations) if states is None else states  # none is kept once a round has ended
    courses = {
        number: Course(federation, federation_calibration(federation), state)
        for number, (federation, state) in enumerate(zip(federations, begun, strict=True))
    }
    while courses:
        for number, record in _next_rounds(courses, engine).items():
            course = courses[number]
            ended = record if isinstance(record, Diverged) else _evaluated(course, record, engine)
            if isinstance(ended, Diverged) or over(course.federation.settings, course.state):
                del courses[number]
            yield number, ended if isinstance(ended, Diverged) else Round(ended, course.state)


def _next_rounds(courses: Mapping[int, Course], engine: Engine) -> dict[int, RoundRecord | Diverged]:
    """One round of each; its orders and sums are gone when the next one begins."""
    opened = {number: open_round(course.federation, course.state) for number, course in courses.items()}
    asks = [(course.state.weights, opened[number].orders) for number, course in courses.items()]
    records: dict[int, RoundRecord | Diverged] = {}
    for (number, course), answer in zip(courses.items(), train_all(engine, asks), strict=True):
        if isinstance(answer, Diverged):
            records[number] = answer
        else:
            course.state, records[number] = close_round(course.federation, course.state, opened[number], *answer)
    return records


def _evaluated(course: Course, record: RoundRecord, engine: Engine) -> RoundRecord | Diverged:
    """A round's record with the model's score, where it is its turn."""
    state, settings = course.state, course.federation.settings
    if state.round % settings.evaluation.every != 0 and not over(settings, state):
        return record
    score = engine.evaluate(state.weights, course.calibration)
    if not isfinite(score.loss):
        return Diverged(f"training diverged in round {state.round}: the test loss is {score.loss}")
    return replace(record, accuracy=score.accuracy, loss=score.loss, metrics=score.more)


def federation_calibration(federation: Federation) -> NDArray[np.int64]:
    """The samples over which batch-norm statistics are taken."""
    shares = [member.share for member in federation.members]
    return calibration_indices(federation.settings.evaluation, shares, federation.seeds.training)


def over(settings: Settings, state: State) -> bool:
    """Whether a run has ended."""
    return state.round >= settings.rounds or state.clock_s >= (settings.horizon_s or float("inf"))


def first_state(federation: Federation) -> State:
    task = federation.task
    weights = task.initial_weights(federation.seeds.weights)
    return State(
        round=0,
        clock_s=0.0,
        weights={name: weight.to(task.train.inputs.device) for name, weight in weights.items()},
        devices=(DeviceState(),) * len(federation.members),
        last_trained=never_trained(task.axes, task.train.inputs.device),
    )


def assemble(
    task: Task, method: Method, fleet: Fleet, weather: Weather, settings: Settings, seeds: Seeds
) -> Federation:
    """Split the data over the fleet and work out what every level costs every device."""
    if settings.evaluation.on == "validation":
        task = with_validation(task)
    labels = task.train.targets.cpu().numpy()
    shares = split(settings.partition, labels, task.classes, len(fleet), seeds, groups=task.groups)
    return enrol(task, method, fleet, weather, settings, seeds, shares)


def enrol(
    task: Task,
    method: Method,
    fleet: Fleet,
    weather: Weather,
    settings: Settings,
    seeds: Seeds,
    shares: Sequence[Share],
) -> Federation:
    """The federation of devices that have these shares of the data."""
    devices = fleet.devices
    costs = level_costs(task, settings.ladder)
    measured = method.policy.needs_fisher
    batches = [settings.training.batches(len(share.indices)) for share in shares]
    works = {number: _works(costs, settings, number, measured) for number in set(batches)}
    members = tuple(
        Member(device, _profile(device, number), share, works[number])
        for device, share, number in zip(devices, shares, batches, strict=True)
    )
    return Federation(task, method, settings, members, Sky.over(weather, seeds.weather, devices), seeds)


def _works(costs: tuple[LevelCost, ...], settings: Settings, batches: int, measured: bool) -> tuple[Workload, ...]:
    """What each level costs every device that trains on so many mini-batches."""
    batch = settings.training.batch
    extra = settings.fisher.cost * min(settings.fisher.batches, batches) if measured else 0.0
    return tuple(
        Workload(
            level=cost.level,
            samples=batch * (batches + extra),
            flops=cost.flops,
            upload_bits=_BITS * cost.parameters,
            download_bits=_BITS * cost.parameters,
            memory_mb=cost.memory_mb(batch),
        )
        for cost in costs
    )


def _profile(device: Device, batches: int) -> Profile:
    return Profile(device.index, device.kind, device.fixed_level, device.widest_level, batches)


def use_one_thread() -> None:
    """Small steps run faster on one thread, and what they come to does not depend on how many there are."""
    torch.set_num_threads(1)
