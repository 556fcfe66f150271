"""Stacks and worker processes: whoever carries orders out, and in whatever company, the result is the same."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whalefl.config import compose
from whalefl.engines import make_engine
from whalefl.errors import WhaleflError
from whalefl.federation.engine import PlainEngine
from whalefl.federation.local_training import train_slice
from whalefl.federation.methods import make_method
from whalefl.federation.orders import Order
from whalefl.federation.rounds import open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, first_state, simulate
from whalefl.federation.stacks import NARROW, arrange
from whalefl.federation.training import Training
from whalefl.federation.workers import WorkersEngine, can_fork, share_out
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.weather import Weather
from whalefl.rng import Seeds
from whalefl.scheduling.policies import Whale
from whalefl.subnet.aggregation import PartialSums
from whalefl.tasks.digits import digits
from whalefl.tasks.har import har_task
from whalefl.tasks.task import Shape, Task
from whalefl.values import RoundRecord

TRAINING = Training(iterations=3, batch=8, lr=0.05)
FLEET = Fleet((DeviceGroup("JetsonNano", 6), DeviceGroup("RaspberryPi4", 6)))

forks = pytest.mark.skipif(not can_fork(), reason="workers cannot be forked here")


def orders_of(task: Task, method: str = "heterofl", seed: int = 0) -> list[Order]:
    settings = Settings(rounds=2, training=TRAINING)
    federation = assemble(task, make_method(method, Whale(quantile=0.5)), FLEET, Weather(), settings, Seeds.all(seed))
    return open_round(federation, first_state(federation)).orders


SMALL = digits()
NARROW_ORDER = orders_of(SMALL)[0]


def one_by_one(task: Task, orders: list[Order]) -> PartialSums:
    """Every device alone in a new model."""
    sums, weights = PartialSums(task.axes), task.initial_weights(0)
    for order in orders:
        model = task.build(Shape.of(order.plan, order.width))
        shapes = {name: p.shape for name, p in model.named_parameters()}
        slices = {name: weights[name][tuple(slice(0, n) for n in shape)] for name, shape in shapes.items()}
        model.load_state_dict(slices)
        train_slice(task, model, TRAINING, order)
        sums.add(order.contribution, dict(model.named_parameters()))
    return sums


def signals() -> Task:
    rng = np.random.default_rng(0)
    arrays = {"subject_train": np.zeros(120, dtype=np.int64)}
    for part, count in (("train", 120), ("test", 12)):
        arrays[f"x_{part}"] = rng.normal(size=(count, 9, 128)).astype(np.float32)
        arrays[f"y_{part}"] = np.arange(count) % 6
    return har_task(arrays)


@pytest.mark.parametrize("make", [digits, signals])
def test_devices_side_by_side_learn_what_each_learns_alone(make: object) -> None:
    task = make()  # type: ignore[operator]
    orders = orders_of(task)
    assert all(order.width <= NARROW for order in orders)
    assert max(len(group) for group in arrange(task, orders)) == 6
    sums, _ = PlainEngine(task, TRAINING).train(task.initial_weights(0), orders)
    alone = one_by_one(task, orders)
    torch.testing.assert_close(sums.flat, alone.flat, rtol=1e-5, atol=1e-6)


def test_fisher_information_of_a_copy_is_its_own(corners: Task) -> None:
    orders = orders_of(corners, "whale")
    assert orders[0].fisher_steps and len(arrange(corners, orders)[-1]) > 1
    _, together = PlainEngine(corners, TRAINING).train(corners.initial_weights(0), orders)
    _, alone = PlainEngine(corners, TRAINING, largest=1).train(corners.initial_weights(0), orders)
    mine = {outcome.device: outcome for outcome in together}
    for outcome in alone:
        other = mine[outcome.device]
        assert other.loss == pytest.approx(outcome.loss, rel=1e-5)
        assert outcome.fisher is not None and other.fisher is not None
        assert other.fisher.trace == pytest.approx(outcome.fisher.trace, rel=1e-3)
        assert other.fisher.unit == pytest.approx(outcome.fisher.unit, rel=1e-3)


@given(st.integers(1, 60), st.integers(1, 9))
def test_groups_hold_everyone_once_and_none_is_too_large(count: int, largest: int) -> None:
    groups = arrange(SMALL, [replace(NARROW_ORDER, device=device) for device in range(count)], largest)
    assert sorted(order.device for group in groups for order in group) == list(range(count))
    sizes = [len(group) for group in groups]
    assert min(sizes) >= 1 and max(sizes) <= largest and max(sizes) - min(sizes) <= 1
    assert len(groups) in (1, count) or len(groups) % 2 == 0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_are_a_partition_and_nearly_even(costs: list[float], workers: int) -> None:
    shares = share_out(costs, workers)
    assert sorted(item for share in shares for item in share) == list(range(len(costs)))
    loads = [sum(costs[item] for item in share) for share in shares]
    # Longest first is at most 4/3 of the best plan, which is at least the mean and the longest item.
    best = max(sum(costs) / workers, max(costs))
    second = sorted(costs)[-workers - 1] if len(costs) > workers else 0.0
    assert max(loads) <= max(4 / 3 * max(best, 2 * second), best) + 1e-9


@forks
@pytest.mark.parametrize("method", ["whale", "whaledropout", "fedavg"])
def test_a_run_is_bit_for_bit_the_same_on_one_and_on_several_workers(corners: Task, method: str) -> None:
    def run(engine: PlainEngine | WorkersEngine) -> tuple[list[RoundRecord], list[torch.Tensor]]:
        settings = Settings(rounds=3, training=TRAINING)
        rounds = list(simulate(corners, make_method(method), FLEET, settings=settings, engine=engine))
        return [finished.record for finished in rounds], list(rounds[-1].state.weights.values())

    records, weights = run(PlainEngine(corners, TRAINING))
    for workers in (1, 2, 3):
        with WorkersEngine(corners, TRAINING, workers) as engine:
            same_records, same_weights = run(engine)
        assert same_records == records  # scores too
        assert all(torch.equal(a, b) for a, b in zip(same_weights, weights, strict=True))


@forks
def test_a_worker_that_dies_is_noticed(corners: Task) -> None:
    orders, weights = orders_of(corners), corners.initial_weights(0)
    engine = WorkersEngine(corners, TRAINING, 2)
    engine.train(weights, orders)
    process = engine._processes[1].pid
    assert process is not None
    os.kill(process, signal.SIGKILL)
    with pytest.raises(WhaleflError, match="worker 1 died with exit code -9"):
        engine.train(weights, orders)
    assert engine._processes == []


@forks
def test_what_goes_wrong_in_a_worker_is_said_here(corners: Task) -> None:
    orders = [replace(order, lr=1e30) for order in orders_of(corners)]
    with (
        WorkersEngine(corners, Training(clip=0.0), 2) as engine,
        pytest.raises(WhaleflError, match="training diverged on device"),
    ):
        engine.train(corners.initial_weights(0), orders)


@forks
def test_bf16_learns_nearly_the_same(corners: Task) -> None:
    orders, weights = orders_of(corners, "fedavg"), corners.initial_weights(0)
    with WorkersEngine(corners, TRAINING, 2, "bf16") as engine:
        sums, outcomes = engine.train(weights, orders)
    exact, reference = PlainEngine(corners, TRAINING).train(weights, orders)
    assert not torch.equal(sums.flat, exact.flat)
    assert (sums.flat - exact.flat).norm() < 0.02 * exact.flat.norm()
    assert np.mean([o.loss for o in outcomes]) == pytest.approx(np.mean([o.loss for o in reference]), rel=0.05)


def test_narrow_slices_are_not_rounded_to_bf16_on_a_processor(corners: Task) -> None:
    orders, weights = orders_of(corners), corners.initial_weights(0)
    assert all(order.width <= NARROW for order in orders)
    rounded, exact = (
        PlainEngine(corners, TRAINING, precision).train(weights, orders)[0] for precision in ("bf16", "fp32")
    )
    assert torch.equal(rounded.flat, exact.flat)


@forks
def test_an_engine_that_was_closed_says_so(corners: Task) -> None:
    engine = WorkersEngine(corners, TRAINING, 1)
    engine.close()
    with pytest.raises(WhaleflError, match="this one was closed"):
        engine.train(corners.initial_weights(0), orders_of(corners))


@forks
def test_a_mistake_in_a_worker_is_raised_here_with_where_it_was_made(corners: Task) -> None:
    orders, weights = orders_of(corners), corners.initial_weights(0)
    wrong = [replace(order, batches=order.batches + 10**6) for order in orders]
    with WorkersEngine(corners, TRAINING, 2) as engine:
        with pytest.raises(IndexError) as caught:
            engine.train(weights, wrong)
        assert "training_inputs" in caught.value.__notes__[0]
        assert len(engine.train(weights, orders)[1]) == len(orders)  # and they go on


class Unspeakable(Exception):
    """An error that cannot travel from one process to another."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("cannot be said")


@forks
def test_an_error_that_cannot_travel_is_told(corners: Task) -> None:
    def failing(inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 1:  # costs are counted with one
            raise Unspeakable(1, 2)
        return corners.prepare(inputs)

    orders, weights = orders_of(corners), corners.initial_weights(0)
    with (
        WorkersEngine(replace(corners, prepare=failing), TRAINING, 2) as engine,
        pytest.raises(RuntimeError, match="cannot be said") as caught,
    ):
        engine.train(weights, orders)
    assert "Unspeakable" in caught.value.__notes__[0]


@forks
def test_more_workers_than_work(corners: Task) -> None:
    orders = orders_of(corners)[:1]
    weights = corners.initial_weights(0)
    with WorkersEngine(corners, TRAINING, 3) as engine:
        sums, outcomes = engine.train(weights, orders)
    expected, _ = PlainEngine(corners, TRAINING).train(weights, orders)
    assert torch.equal(sums.flat, expected.flat) and len(outcomes) == 1


def test_orders_of_many_lengths_need_few_stacks(corners: Task) -> None:
    template, engine = orders_of(corners)[0], PlainEngine(corners, TRAINING)
    rng, weights = np.random.default_rng(0), corners.initial_weights(0)
    orders = [
        replace(template, device=length, batches=rng.integers(0, len(corners.train), (length, 8)))
        for length in range(1, 17)
    ]
    sums, outcomes = engine.train(weights, orders)
    assert len(engine._stacks) == 5  # room for 1, 2, 4, 8 and 16 mini-batches
    one_by_one_sums = PartialSums(corners.axes)
    for order in orders:
        alone, _ = PlainEngine(corners, TRAINING).train(weights, [order])
        one_by_one_sums.merge(alone)
    torch.testing.assert_close(sums.flat, one_by_one_sums.flat)
    assert [outcome.device for outcome in outcomes] == list(range(1, 17))


@pytest.mark.parametrize(
    ("wanted", "kind"), [("plain", PlainEngine), pytest.param("workers", WorkersEngine, marks=forks)]
)
def test_the_engine_is_the_one_asked_for(corners: Task, wanted: str, kind: type) -> None:
    engine = make_engine(compose([{"engine": wanted}]), corners)
    try:
        assert type(engine) is kind
    finally:
        engine.close()


def test_graphs_need_a_gpu(corners: Task) -> None:
    with pytest.raises(WhaleflError, match="engine is 'graphs'; it must be"):
        make_engine(compose([{"engine": "graphs"}]), corners)
