"""One round as two pure functions: `open_round` hands out orders, `close_round` turns what came back into a new state.

Nothing here trains, waits or writes: an engine carries the orders out in between, in a simulator or over a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whalefl.federation.methods import Method
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.settings import Settings
from whalefl.fleet.devices import Device
from whalefl.fleet.energy import energy_spent
from whalefl.fleet.knowledge import Knowledge, expected_delays, known_conditions, measure
from whalefl.fleet.latency import Workload, memory_level, true_delay
from whalefl.fleet.weather import Sky
from whalefl.rng import Seeds, stream
from whalefl.scheduling.fisher import Window, push
from whalefl.scheduling.policies import Announcement, Choice, ServerMemory
from whalefl.subnet.aggregation import Contribution, PartialSums, count_devices
from whalefl.subnet.axes import Plan
from whalefl.subnet.coverage import LastTrained, cover
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task
from whalefl.values import Conditions, Delay, DeviceReport, Profile, RoundRecord


@dataclass(frozen=True, eq=False)
class Member:
    """A device as the federation knows it: hardware, data, and what each level costs it."""

    device: Device
    profile: Profile
    share: Share
    works: tuple[Workload, ...]


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything that stays the same from round to round."""

    task: Task
    method: Method
    settings: Settings
    members: tuple[Member, ...]
    sky: Sky
    seeds: Seeds


@dataclass(frozen=True)
class DeviceState:
    """What a device keeps between rounds: its Fisher window, its knowledge, and its place in its data."""

    window: Window = ()
    knowledge: Knowledge = field(default_factory=Knowledge)
    consumed: int = 0


@dataclass(frozen=True, eq=False)
class State:
    """Everything that changes from round to round."""

    round: int
    clock_s: float
    weights: Mapping[str, Tensor]
    devices: tuple[DeviceState, ...]
    last_trained: LastTrained
    memory: ServerMemory = ServerMemory()
    reports: tuple[DeviceReport, ...] = ()


@dataclass(frozen=True, eq=False)
class Assignment:
    """A device in an open round: what it chose and why, and the order that follows from it."""

    member: Member
    choice: Choice
    conditions: Conditions
    expected: tuple[Delay, ...]
    order: Order


@dataclass(frozen=True, eq=False)
class OpenRound:
    """A round whose orders are out."""

    round: int
    announcement: Announcement
    memory: ServerMemory
    assignments: tuple[Assignment, ...]

    @property
    def orders(self) -> list[Order]:
        return [assignment.order for assignment in self.assignments]


def open_round(federation: Federation, state: State) -> OpenRound:
    """Announce, let every selected device choose its level, and turn each choice into an order."""
    number = state.round + 1
    memory, announcement = federation.method.policy.announce(state.memory, number, state.reports)
    assignments = tuple(_assign(federation, state, announcement, member) for member in selected(federation, number))
    return OpenRound(number, announcement, memory, _in_time(federation, state, assignments))


def _in_time(federation: Federation, state: State, assignments: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
    """Those who will have finished when the round closes; the others are as if they had not been selected.

    The round closes when the share `wait_for` of the devices is done. Whoever is not done by then is neither
    averaged nor heard of, and learns nothing.
    """
    wanted = max(1, ceil(federation.settings.wait_for * len(assignments) - 1e-9))
    if wanted >= len(assignments):
        return assignments
    ends = {a.member.device.index: _seconds(a, _true_delay(federation, state, a)) for a in assignments}
    done = set(sorted(ends, key=lambda device: ends[device])[:wanted])
    return tuple(assignment for assignment in assignments if assignment.member.device.index in done)


def _seconds(assignment: Assignment, delay: Delay) -> float:
    """How long a device's round lasts."""
    return delay.total_s + assignment.member.device.overhead_s


def selected(federation: Federation, number: int) -> Sequence[Member]:
    """Who takes part in a round."""
    chosen = ranked(federation, number)[: federation.settings.clients_per_round]
    return sorted(chosen, key=lambda member: member.device.index)


def ranked(federation: Federation, number: int) -> Sequence[Member]:
    """All members in the order in which a round would have them, where it does not have them all."""
    count = federation.settings.clients_per_round
    if count is None or count >= len(federation.members):
        return federation.members
    rng = stream(federation.seeds.training, "selection", number)
    return [federation.members[i] for i in rng.permutation(len(federation.members))]


def _assign(federation: Federation, state: State, announcement: Announcement, member: Member) -> Assignment:
    own = state.devices[member.device.index]
    true = federation.sky.conditions(member.device, state.clock_s)
    known = known_conditions(federation.settings.latency, own.knowledge, true)
    expected = expected_delays(
        federation.settings.latency, federation.sky, member.device, member.works, own.knowledge, true, state.clock_s
    )
    choice = choose_level(federation, announcement, member, own.window, known, expected)
    order = make_order(federation, announcement.round, member, own.consumed, choice.level)
    return Assignment(member, choice, true, expected, order)


def choose_level(
    federation: Federation,
    announcement: Announcement,
    member: Member,
    window: Window,
    known: Conditions,
    expected: Sequence[Delay],
) -> Choice:
    """What a device wants to train, from what it alone knows."""
    choice = federation.method.policy.choose(announcement, member.profile, known, expected, window)
    # Whatever a policy wants, a slice that does not fit into the free memory cannot be trained.
    return Choice(max(choice.level, memory_level(member.works, known.free_memory_mb)), choice.utility)


def make_order(federation: Federation, number: int, member: Member, consumed: int, level: int) -> Order:
    """The order of a device for a round; `consumed` is its place in its data."""
    task, seed, device = federation.task, federation.seeds.training, member.device.index
    batches, batch = member.profile.batches, federation.settings.training.batch
    extraction, ladder = federation.method.extraction, federation.settings.ladder
    plan = extraction.plan(task.axes, ladder.width(level), number, device, seed)
    unit = extraction.plan(task.axes, ladder.width(ladder.levels), number, device, seed)
    owned, samples = member.share.owned, len(member.share.indices)
    steps, draws = _fisher_draws(federation, number, member)
    return Order(
        device=device,
        level=level,
        width=ladder.width(level),
        lr=federation.settings.training.rate(number, federation.settings.rounds),
        contribution=contribution_of(federation, plan, owned, samples),
        batches=draw_batches(member.share, consumed, batches, batch, device, seed),
        augment_draws=_augment_draws(task, batches, batch, device, number, seed),
        noise_seed=int(stream(seed, "noise", device, number).integers(2**31)),
        labels=owned if federation.settings.training.masked_logits else None,
        fisher_steps=steps,
        fisher_draws=draws,
        unit_plan=unit,
    )


def contribution_of(federation: Federation, plan: Plan, owned: tuple[int, ...], samples: int) -> Contribution:
    """How the slice of a device with these labels and so many examples counts in the average."""
    return Contribution(
        plan=plan,
        owned=owned if federation.settings.aggregation.label_ownership else None,
        weight=float(samples) if federation.settings.aggregation.weighting == "samples" else 1.0,
    )


def draw_batches(share: Share, consumed: int, batches: int, batch: int, device: int, seed: int) -> NDArray[np.int64]:
    """The next full mini-batches of a device: its data reshuffled for every pass, going on where it stopped."""
    size = len(share.indices)
    places = consumed + np.arange(batches * batch)
    passes = np.unique(places // size)
    orders = {int(p): stream(seed, "batches", device, int(p)).permutation(share.indices) for p in passes}
    chosen = np.concatenate([orders[int(p)][places[places // size == p] % size] for p in passes])
    return chosen.reshape(batches, batch)


def _augment_draws(
    task: Task, batches: int, batch: int, device: int, number: int, seed: int
) -> NDArray[np.float32] | None:
    if task.augment is None:
        return None
    shape = (batches, batch, task.augment.draws)
    return stream(seed, "augmentation", device, number).random(shape, dtype=np.float32)


def _fisher_draws(federation: Federation, number: int, member: Member) -> tuple[tuple[int, ...], NDArray[np.float32]]:
    """On which mini-batches Fisher information is measured, and the chance with which labels are drawn there.

    The mini-batches are drawn too, the same for all devices that train on as many, so that measuring fewer of them
    changes the expected mean in nothing.
    """
    predictions = (federation.settings.training.batch, *federation.task.train.targets.shape[1:])
    if not federation.method.policy.needs_fisher:
        return (), np.empty((0, *predictions), dtype=np.float32)
    seed, batches = federation.seeds.training, member.profile.batches
    measured = min(federation.settings.fisher.batches, batches)
    steps = np.sort(stream(seed, "fisher steps", number).permutation(batches)[:measured])
    draws = stream(seed, "fisher labels", member.device.index, number)
    return tuple(int(s) for s in steps), draws.random((measured, *predictions), dtype=np.float32)


def close_round(
    federation: Federation,
    state: State,
    opened: OpenRound,
    sums: PartialSums,
    outcomes: Sequence[Outcome],
) -> tuple[State, RoundRecord]:
    """Average what arrived, move the clock by the slowest device, and let every device learn from its round."""
    by_device = {outcome.device: outcome for outcome in outcomes}
    devices, reports = list(state.devices), []
    for assignment in opened.assignments:
        index = assignment.member.device.index
        delay = _true_delay(federation, state, assignment)
        reports.append(_report(federation, assignment, delay, by_device[index]))
        devices[index] = _learnt(federation, devices[index], assignment, delay, by_device[index])
    round_s = max(_seconds(a, report.true) for a, report in zip(opened.assignments, reports, strict=True))
    moved = replace(state, devices=tuple(devices), memory=opened.memory, reports=tuple(reports))
    return average_round(federation, moved, opened.announcement, sums, round_s)


def average_round(
    federation: Federation, state: State, announcement: Announcement, sums: PartialSums, round_s: float
) -> tuple[State, RoundRecord]:
    """Average what arrived in the announced round, of which `state` already holds the reports; it took `round_s`."""
    axes, reports = federation.task.axes, state.reports
    counts = count_devices(axes, sums.contributions, federation.task.train.inputs.device)
    coverage, last_trained = cover(axes, sums.contributions, counts, state.last_trained, announcement.round)
    after = replace(
        state,
        round=announcement.round,
        clock_s=state.clock_s + round_s,
        weights=sums.average(state.weights, counts),
        last_trained=last_trained,
    )
    record = RoundRecord(
        round=announcement.round,
        time_s=after.clock_s,
        round_s=round_s,
        accuracy=None,
        loss=None,
        metrics={},
        train_loss=sum(report.loss for report in reports) / len(reports),
        threshold=announcement.threshold,
        preferred_s=announcement.preferred_s,
        coverage=coverage,
        devices=reports,
    )
    return after, record


def _true_delay(federation: Federation, state: State, assignment: Assignment) -> Delay:
    member = assignment.member
    work = member.works[assignment.choice.level - 1]
    return true_delay(
        federation.settings.latency, federation.sky, member.device, work, assignment.conditions, state.clock_s
    )


def _report(federation: Federation, assignment: Assignment, delay: Delay, outcome: Outcome) -> DeviceReport:
    member, conditions, level = assignment.member, assignment.conditions, assignment.choice.level
    work, fisher = member.works[level - 1], outcome.fisher
    return DeviceReport(
        device=member.device.index,
        kind=member.device.kind,
        level=level,
        share=work.upload_bits / member.works[0].upload_bits,
        loss=outcome.loss,
        utility=assignment.choice.utility,
        fisher=None if fisher is None else sum(fisher.trace) / len(fisher.trace),
        fisher_unit=None if fisher is None else sum(fisher.unit) / len(fisher.unit),
        known=assignment.expected[level - 1],
        true=delay,
        unit_s=assignment.expected[-1].total_s,
        energy=energy_spent(member.device, delay, federation.sky.radio_power_w(conditions.link)),
        link=conditions.link,
        rate_mbps=conditions.rate_mbps,
        slowdown=conditions.slowdown,
        free_memory_mb=conditions.free_memory_mb,
        bytes_up=work.upload_bits // 8,
        bytes_down=work.download_bits // 8,
    )


def _learnt(
    federation: Federation, own: DeviceState, assignment: Assignment, delay: Delay, outcome: Outcome
) -> DeviceState:
    work = assignment.member.works[assignment.choice.level - 1]
    window = own.window
    if outcome.fisher is not None:
        window = push(window, outcome.fisher, federation.method.policy.window)
    knowledge = measure(
        federation.settings.latency, own.knowledge, assignment.member.device, work, assignment.conditions, delay
    )
    return DeviceState(window, knowledge, own.consumed + assignment.order.batches.size)
