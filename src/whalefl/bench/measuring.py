"""Measure one scenario: the variants take turns at the same round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from whalefl.bench.floor import Rate, best_rates, floor_s, measured_rates, round_flops, wait_for
from whalefl.bench.processes import Watch
from whalefl.bench.results import Result, Row, this_machine
from whalefl.bench.scenarios import Scenario, orders_of, random_task
from whalefl.bench.timing import Timing, alternate, ratio
from whalefl.bench.variants import TrainRound, Variant
from whalefl.federation.orders import Order
from whalefl.federation.simulation import use_one_thread
from whalefl.subnet.slicing import Weights


def measure(
    scenario: Scenario,
    variants: Sequence[Variant],
    repeats: int,
    device: str,
    command: str,
    listener: Callable[[str], object] = lambda text: None,
) -> Result:
    """Time every variant on the scenario's round; before every repeat, see what matrix products reach right now."""
    use_one_thread()
    rates = measured_rates(device)

    def begin(number: int) -> None:
        nonlocal rates
        listener(f"{scenario.name}: " + (f"repeat {number} of {repeats}" if number else "warming up"))
        rates = best_rates(rates, measured_rates(device))

    task = random_task(scenario.task, scenario.samples).to(device)
    orders = orders_of(scenario, task)
    weights = {name: weight.to(device) for name, weight in task.initial_weights(0).items()}
    unmeasured = [replace(order, fisher_steps=()) for order in orders]
    flops = {True: round_flops(task, orders), False: round_flops(task, unmeasured)}
    with ExitStack() as stack:
        turns = {}
        for variant in variants:
            train_round = stack.enter_context(variant.make(task, scenario.training))
            turns[variant.name] = _Turn(train_round, weights, orders, torch.device(device))
        watch = Watch.start()
        timings = alternate(turns, repeats, begin)
        others = None if watch is None else watch.others()
    row = partial(_row, scenario, flops, rates, timings[variants[0].name])
    return Result(
        scenario=scenario.name,
        description=scenario.description,
        machine=this_machine(device),
        command=command,
        others=others,
        flops=flops[True],
        rates=rates,
        rows=tuple(row(variant, timings[variant.name], turns[variant.name].gpu_mb) for variant in variants),
    )


class _Turn:
    """One variant's round, waited for; its first turn also shows how much GPU memory the variant takes."""

    def __init__(
        self, train_round: TrainRound, weights: Weights, orders: Sequence[Order], device: torch.device
    ) -> None:
        self.train_round, self.weights, self.orders, self.device = train_round, weights, orders, device
        self.gpu_mb: float | None = None

    def __call__(self) -> None:
        if self.device.type == "cuda" and self.gpu_mb is None:
            self._watched()
        else:
            self._train()

    def _train(self) -> None:
        self.train_round(self.weights, self.orders)
        wait_for(self.device)

    def _watched(self) -> None:
        # Recorded steps keep memory that the allocator does not call allocated, but reserved.
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._train()
        self.gpu_mb = (torch.cuda.max_memory_reserved(self.device) - before) / 1e6


def _row(
    scenario: Scenario,
    flops: Mapping[bool, float],
    rates: Sequence[Rate],
    reference: Timing,
    variant: Variant,
    timing: Timing,
    gpu_mb: float | None,
) -> Row:
    floor = floor_s(flops[variant.measures], rates, variant.precision)
    return Row(
        variant=variant.name,
        seconds=timing.seconds,
        median_s=timing.median_s,
        rounds_per_s=1 / timing.median_s,
        samples_per_s=scenario.samples / timing.median_s,
        ratio=ratio(reference.seconds, timing.seconds),
        floor_s=floor,
        floor_share=floor / timing.median_s,
        setup_s=max(0.0, timing.first_s - timing.median_s),
        gpu_mb=gpu_mb,
    )
