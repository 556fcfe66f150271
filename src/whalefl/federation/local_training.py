"""What one device does in a round: it trains its slice on an order's mini-batches, and reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.errors import WhaleflError
from whalefl.federation.steps import Batch, Learner, has_dropout, training_step
from whalefl.federation.training import Training
from whalefl.scheduling.fisher import FisherEntry, fisher_trace
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.axes import Axes, Plan
from whalefl.subnet.slicing import Index, index_of, inside, plan_key, sliced_axes
from whalefl.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Order:
    """Everything a device needs for a round, all chance in it already drawn.

    `batches` holds example indices (mini-batches x batch) and `augment_draws` the uniform numbers that change each of
    them at random (None: nothing does); `noise_seed` seeds dropout; `labels` are the classes the loss may use (None:
    all); `fisher_steps` are the mini-batches on which Fisher information is measured, and `fisher_draws` a uniform
    number for each prediction scored there; `unit_plan` is the smallest slice inside this one.
    """

    device: int
    level: int
    width: float
    lr: float
    contribution: Contribution
    batches: NDArray[np.int64]
    augment_draws: NDArray[np.float32] | None
    noise_seed: int
    labels: tuple[int, ...] | None
    fisher_steps: tuple[int, ...]
    fisher_draws: NDArray[np.float32]
    unit_plan: Plan

    @property
    def plan(self) -> Plan:
        return self.contribution.plan


@dataclass(frozen=True)
class Outcome:
    """What comes back beside the trained slice: the mean training loss, and the Fisher information if measured."""

    device: int
    loss: float
    fisher: FisherEntry | None


def train_slice(task: Task, model: nn.Module, training: Training, order: Order) -> Outcome:
    """Train a slice, already loaded into `model`, in place."""
    if not has_dropout(model):
        return _train(task, model, training, order)
    with torch.random.fork_rng():
        torch.manual_seed(order.noise_seed)
        return _train(task, model, training, order)


def _train(task: Task, model: nn.Module, training: Training, order: Order) -> Outcome:
    learner = learner_of(task, model, order)
    results = torch.zeros(3, len(order.batches), dtype=torch.float64, device=task.train.inputs.device)
    measurements = 0
    for step, batch in enumerate(mini_batches(order, task.train.inputs.device)):
        measured = training_step(task, training, learner, batch, order.lr)
        results[0, step] = measured.loss
        if measured.whole is not None and measured.unit is not None:
            results[1, measurements], results[2, measurements] = measured.whole, measured.unit
            measurements += 1
    return outcome_of(task, order, sum(w.numel() for w in learner.weights.values()), results.cpu())


def learner_of(task: Task, model: nn.Module, order: Order) -> Learner:
    """The model as it starts an order, with fresh momentum."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    place = task.train.inputs.device
    return Learner(
        model=model,
        weights=weights,
        momentum=[torch.zeros_like(weight) for weight in weights.values()],
        absent=None if order.labels is None else absent_classes(task.classes, order.labels).to(place),
        unit=unit_index(task.axes, order) if order.fisher_steps else {},
    )


def absent_classes(classes: int, labels: tuple[int, ...]) -> Tensor:
    """A mask of the classes a device does not own."""
    absent = torch.ones(classes, dtype=torch.bool)
    absent[list(labels)] = False
    return absent


def unit_index(axes: Axes, order: Order) -> dict[str, Index]:
    """What selects the coordinates of the smallest slice from each parameter of this order's slice."""
    memory: dict[str, tuple[object, dict[str, Index]]] = axes.units
    # Prefix plans ask for the same few answers round after round.
    key, place = (plan_key(axes, order.plan), plan_key(axes, order.unit_plan)), f"unit of level {order.level}"
    if place not in memory or memory[place][0] != key:
        positions = sliced_axes(axes, order.plan).parameter_positions(inside(order.plan, order.unit_plan))
        memory[place] = (key, {name: index_of(kept) for name, kept in positions.items()})
    return memory[place][1]


def mini_batches(order: Order, device: torch.device) -> Iterator[Batch]:
    """The mini-batches of an order, on a device."""
    augment_draws = None if order.augment_draws is None else torch.from_numpy(order.augment_draws).to(device)
    fisher_draws = torch.from_numpy(order.fisher_draws).to(device)
    for step, indices in enumerate(torch.from_numpy(order.batches).to(device)):
        measured = step in order.fisher_steps
        yield Batch(
            indices=indices,
            augment_draws=None if augment_draws is None else augment_draws[step],
            fisher_draws=fisher_draws[order.fisher_steps.index(step)] if measured else None,
        )


def outcome_of(task: Task, order: Order, parameters: int, results: Tensor) -> Outcome:
    """What a device reports of its steps.

    `results` has three rows: the loss of every step, and the squared norms of the score gradient over the slice and
    over the unit inside it, the latter for the first so many columns as there are measurements.
    """
    loss = float(results[0].mean())
    scored = order.batches.shape[1] * task.train.targets[0].numel()
    whole, unit = (
        tuple(fisher_trace(norm, scored) for norm in row[: len(order.fisher_steps)].tolist()) for row in results[1:]
    )
    if not np.isfinite([loss, *whole]).all():
        raise WhaleflError(f"training diverged on device {order.device}: its loss is {loss}; lr must be smaller")
    fisher = FisherEntry(order.level, parameters, whole, unit) if whole else None
    return Outcome(order.device, loss, fisher)
