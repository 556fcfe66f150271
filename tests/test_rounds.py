"""The round: the engine against the readable twin, order of arrival, selection, caps, and whole runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conftest import made_up_task
from whalefl.errors import Diverged, WhaleflError
from whalefl.federation.engine import PlainEngine
from whalefl.federation.evaluation import Score
from whalefl.federation.methods import METHODS, Method, make_method
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.rounds import close_round, draw_batches, open_round
from whalefl.federation.settings import Aggregation, Settings
from whalefl.federation.simulation import assemble, first_state, rounds_together, simulate
from whalefl.federation.training import Training
from whalefl.federation.workers import WorkersEngine, can_fork
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.latency import LatencySettings
from whalefl.fleet.weather import Weather
from whalefl.rng import Seeds
from whalefl.scheduling.fisher import FisherSettings
from whalefl.scheduling.policies import FunctionPolicy, ServerMemory, Whale
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.plans import Prefix
from whalefl.subnet.slicing import Weights
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task
from whalefl.values import RoundRecord

TWIN = Path(__file__).parent.parent / "examples" / "one_round.py"
TRAINING = Training(iterations=4, batch=8, lr=0.05)
SETTINGS = Settings(rounds=4, training=TRAINING)


def records(task: Task, method: str, **changes: object) -> list[RoundRecord]:
    settings = replace(SETTINGS, **changes)
    return [r.record for r in simulate(task, make_method(method), settings=settings, seeds=Seeds.all(3))]


def test_the_engine_equals_the_readable_twin(corners: Task) -> None:
    spec = importlib.util.spec_from_file_location("one_round", TWIN)
    assert spec is not None and spec.loader is not None
    twin = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    import sys

    sys.modules["one_round"] = twin
    spec.loader.exec_module(twin)
    whale, seeds = Whale(quantile=0.9), Seeds.all(1)
    federation = assemble(corners, make_method("whale", whale), Fleet(), Weather(), SETTINGS, seeds)
    engine, state, seen = PlainEngine(corners, TRAINING), first_state(federation), set()
    for _ in range(5):
        opened = open_round(federation, state)
        devices = [
            twin.Device(
                index=a.member.device.index,
                examples=a.member.share.indices,
                owned=a.member.share.owned,
                fisher=[list(entry.trace) for entry in state.devices[a.member.device.index].window],
                transmission_s=a.expected[-1].transmission_s,
                computing_s=a.expected[-1].computing_s,
                consumed=state.devices[a.member.device.index].consumed,
            )
            for a in opened.assignments
        ]
        told = opened.announcement
        expected, levels = twin.one_round(
            corners, dict(state.weights), devices, told.preferred_s, told.threshold, seeds.training, 4, 8, 0.05
        )
        assert levels == [order.level for order in opened.orders]
        seen |= set(levels)
        sums, outcomes = engine.train(state.weights, opened.orders)
        state, _ = close_round(federation, state, opened, sums, outcomes)
        for name, weight in state.weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-7)
    assert len(seen) >= 3  # the rounds compared mixed several widths


def test_the_twin_is_short() -> None:
    assert len(TWIN.read_text(encoding="utf8").splitlines()) < 120


class Shuffled:
    """The plain engine with devices arriving in another order."""

    def __init__(self, task: Task) -> None:
        self.plain, self.rng = PlainEngine(task, TRAINING), np.random.default_rng(7)

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        return self.plain.train(weights, [orders[i] for i in self.rng.permutation(len(orders))])

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        return self.plain.evaluate(weights, calibration)


@pytest.mark.parametrize("method", ["whale", "whaledropout", "whalerolex"])
def test_the_order_of_arrival_does_not_show_in_a_single_bit(corners: Task, method: str) -> None:
    runs = [
        list(simulate(corners, make_method(method), settings=SETTINGS, seeds=Seeds.all(3), engine=engine))
        for engine in (None, Shuffled(corners), Shuffled(corners))
    ]
    for other in runs[1:]:
        assert [r.record for r in other] == [r.record for r in runs[0]]
        for name, weight in other[-1].state.weights.items():
            assert torch.equal(weight, runs[0][-1].state.weights[name])


@pytest.mark.parametrize("method", [*METHODS, "prefix+whale-se", "prefix+whale-te", "rolling+random"])
def test_every_method_runs_and_repeats_bit_for_bit(corners: Task, method: str) -> None:
    first, second = records(corners, method), records(corners, method)
    assert first == second
    assert [r.round for r in first] == [1, 2, 3, 4]
    for earlier, later in zip(first, first[1:], strict=False):
        assert later.time_s == earlier.time_s + later.round_s
    for record in first:
        assert record.round_s == max(d.true.total_s for d in record.devices)
        assert record.coverage.untouched < 1


def test_the_global_model_carries_no_history_of_how_it_was_computed(corners: Task) -> None:
    last = list(simulate(corners, make_method("fedavg"), settings=SETTINGS))[-1]
    assert not any(weight.requires_grad for weight in last.state.weights.values())


def test_levels_that_round_to_the_same_sizes_keep_their_own_scaler() -> None:
    tiny = made_up_task(channels=(2, 2))
    federation = assemble(tiny, make_method("heterofl"), Fleet(), Weather(), SETTINGS, Seeds())
    state = first_state(federation)
    orders = open_round(federation, state).orders
    forwards, _ = PlainEngine(tiny, TRAINING).train(state.weights, orders)
    backwards, _ = PlainEngine(tiny, TRAINING).train(state.weights, orders[::-1])
    assert all(torch.equal(forwards.sums[name], backwards.sums[name]) for name in forwards.sums)


def test_the_share_is_that_of_the_parameters_in_the_slice(corners: Task) -> None:
    record = records(corners, "heterofl", rounds=1)[0]
    for device in record.devices:
        plan = Prefix().plan(corners.axes, 0.5 ** (device.level - 1), 0, 0, 0)
        assert device.share == corners.axes.slice_count(plan) / corners.axes.count


def test_a_threshold_is_found_however_late_the_first_utility_comes(corners: Task) -> None:
    last = list(simulate(corners, make_method("whale"), settings=SETTINGS))[-1]
    reports = [replace(report, utility=float(report.device)) for report in last.state.reports]
    whale, long_after = Whale(window=2, quantile=0.5), 50
    memory, told = whale.announce(ServerMemory(preferred_s=1.0), long_after, reports)
    assert told.threshold == 9.5
    _, later = whale.announce(memory, long_after + 1, [replace(r, utility=1000.0) for r in reports])
    assert later.threshold == 9.5  # and frozen


def test_learning_happens(corners: Task) -> None:
    run = records(corners, "fedavg", rounds=12)
    accuracy = run[-1].accuracy
    assert accuracy is not None and accuracy > 0.9


def test_every_method_meets_the_same_weather(corners: Task) -> None:
    fast, slow = records(corners, "heterofl", rounds=1), records(corners, "fedavg", rounds=1)
    for a, b in zip(fast[0].devices, slow[0].devices, strict=True):
        assert (a.link, a.rate_mbps, a.slowdown, a.free_memory_mb) == (
            b.link,
            b.rate_mbps,
            b.slowdown,
            b.free_memory_mb,
        )


def test_fedavg_pays_nothing_for_fisher_and_whale_does(corners: Task) -> None:
    full = records(corners, "fedavg", rounds=1)[0]
    whale = records(corners, "prefix+whale-te", rounds=1)[0]
    fixed = records(corners, "heterofl", rounds=1)[0]
    slowest = [d for d in fixed.devices if d.level == 5][0]
    measured = [d for d in whale.devices if d.device == slowest.device][0]
    # Two of four mini-batches measured at 0.6 of an iteration each: (4 + 1.2) / 4 of the time, at the same level.
    assert measured.true.computing_s == pytest.approx(slowest.true.computing_s * 1.3)
    assert all(d.fisher is None for d in full.devices)
    assert all(d.fisher is not None and d.fisher > 0 for d in whale.devices)


def test_only_some_clients_are_selected_and_others_keep_their_history(corners: Task) -> None:
    rounds = list(
        simulate(corners, make_method("whale"), settings=replace(SETTINGS, clients_per_round=3), seeds=Seeds.all(3))
    )
    chosen = [{d.device for d in r.record.devices} for r in rounds]
    assert all(len(c) == 3 for c in chosen)
    assert len(set.union(*chosen)) > 3
    for device, state in enumerate(rounds[-1].state.devices):
        assert len(state.window) == sum(device in c for c in chosen)
        assert state.consumed == 32 * len(state.window)


def test_a_slice_that_does_not_fit_into_memory_is_not_trained(corners: Task) -> None:
    cramped = Fleet((DeviceGroup("RaspberryPi4", 2, memory_mb=0.05), DeviceGroup("RaspberryPi4", 2)))
    run = list(simulate(corners, make_method("fedavg"), cramped, settings=SETTINGS))
    levels = [[d.level for d in r.record.devices] for r in run]
    assert all(level > 1 for row in levels for level in row[:2])
    assert all(level == 1 for row in levels for level in row[2:])


def test_an_adaptive_policy_respects_the_devices_cap(corners: Task) -> None:
    capped = Fleet((DeviceGroup("RaspberryPi4", 2, widest_level=3), DeviceGroup("JetsonNano", 2)))
    method = make_method("whale", Whale(threshold=1e-9))
    run = list(simulate(corners, method, capped, settings=SETTINGS))
    assert [d.level for d in run[-1].record.devices] == [3, 3, 1, 1]


def test_a_plain_function_is_a_policy(corners: Task) -> None:
    method = Method(Prefix(), FunctionPolicy(lambda announcement, profile, conditions, times, window: 2))
    run = list(simulate(corners, method, settings=SETTINGS))
    assert {d.level for r in run for d in r.record.devices} == {2}
    (first, *_) = simulate(corners, Method(Prefix(), FunctionPolicy(lambda *_: np.int64(2))), settings=SETTINGS)
    assert type(first.record.devices[0].level) is int
    for nonsense in (None, "2", 2.0, True, 0, 6):
        policy = FunctionPolicy(lambda *_, level=nonsense: level)
        with pytest.raises(WhaleflError, match="level is .*; it must be between 1 and 5, a whole number"):
            next(iter(simulate(corners, Method(Prefix(), policy), settings=SETTINGS)))


def test_a_run_ends_with_the_first_round_beyond_the_horizon(corners: Task) -> None:
    run = records(corners, "heterofl", rounds=100, horizon_s=3.0)
    assert run[-1].time_s >= 3.0 > run[-2].time_s


def test_evaluation_happens_when_due_and_at_the_end(corners: Task) -> None:
    settings = replace(SETTINGS, evaluation=replace(SETTINGS.evaluation, every=3))
    run = [r.record for r in simulate(corners, make_method("heterofl"), settings=settings)]
    assert [r.accuracy is not None for r in run] == [False, False, True, True]


def test_batches_are_full_go_through_the_data_without_repeats_and_continue() -> None:
    share = Share(np.arange(100, 110), (0,))
    first = draw_batches(share, 0, 3, 4, device=2, seed=0)
    second = draw_batches(share, 12, 2, 4, device=2, seed=0)
    together = np.concatenate([first.ravel(), second.ravel()])
    assert first.shape == (3, 4)
    assert set(together[:10]) == set(together[10:20]) == set(range(100, 110))
    again = draw_batches(share, 0, 5, 4, device=2, seed=0).ravel()
    assert (again == together).all()


def test_weighting_by_samples_counts_examples(corners: Task) -> None:
    by_samples = replace(SETTINGS, aggregation=Aggregation(weighting="samples"))
    three = Fleet((DeviceGroup("RaspberryPi4", 3),))
    federation = assemble(corners, make_method("fedavg"), three, Weather(), by_samples, Seeds())
    weights = [order.contribution.weight for order in open_round(federation, first_state(federation)).orders]
    assert weights == [len(member.share.indices) for member in federation.members]
    assert len(set(weights)) > 1


def test_fewer_measured_batches_change_the_time_and_not_the_weights(corners: Task) -> None:
    few, many = (
        list(
            simulate(
                corners,
                Method(Prefix(), FunctionPolicy(lambda *_: 2, needs_fisher=True)),
                settings=replace(SETTINGS, fisher=FisherSettings(batches=n)),
            )
        )
        for n in (1, 4)
    )
    assert few[-1].record.time_s < many[-1].record.time_s
    for name, weight in few[-1].state.weights.items():
        assert torch.equal(weight, many[-1].state.weights[name])


def test_knowledge_is_not_the_truth_but_oracle_is(corners: Task) -> None:
    for knowledge, equal in (("oracle", True), ("ewma", False), ("last", False)):
        run = records(corners, "heterofl", rounds=3, latency=LatencySettings(knowledge=knowledge))
        gaps = [d.known.total_s == pytest.approx(d.true.total_s) for r in run for d in r.devices]
        assert all(gaps) == equal


def test_records_are_plain_values(corners: Task) -> None:
    import json

    record = records(corners, "whale", rounds=3)[-1]
    assert json.loads(json.dumps(asdict(record), allow_nan=False))["devices"][0]["known"]["computing_s"] > 0


@pytest.mark.parametrize("kind", ["plain", "workers"])
def test_runs_that_share_an_engine_are_as_if_they_ran_alone(corners: Task, kind: str) -> None:
    if kind == "workers" and not can_fork():
        pytest.skip("workers cannot be forked here")
    lengths, method = {1: 4, 2: 2, 3: 4}, make_method("whale")

    def settings(seed: int) -> Settings:
        lr = 1e30 if seed == 1 else TRAINING.lr  # which diverges
        return replace(SETTINGS, rounds=lengths[seed], training=replace(TRAINING, lr=lr))

    runs = [assemble(corners, method, Fleet(), Weather(), settings(seed), Seeds.all(seed)) for seed in lengths]
    found: dict[int, list[object]] = {1: [], 2: [], 3: []}
    with closing(PlainEngine(corners, TRAINING) if kind == "plain" else WorkersEngine(corners, TRAINING, 2)) as engine:
        for number, ended in rounds_together(runs, engine):
            found[number + 1].append(ended if isinstance(ended, Diverged) else ended.record)
    for seed in (2, 3):
        alone = simulate(corners, method, settings=settings(seed), seeds=Seeds.all(seed))
        assert found[seed] == [finished.record for finished in alone]
        assert len(found[seed]) == lengths[seed]
    assert isinstance(found[1][-1], Diverged)
