"""What a round asks of one device, and what the device reports."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whalefl.errors import Diverged
from whalefl.scheduling.fisher import FisherEntry, fisher_trace
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.axes import Plan
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


def absent_classes(classes: int, labels: tuple[int, ...]) -> NDArray[np.bool_]:
    """A mask of the classes a device does not own."""
    absent = np.ones(classes, dtype=bool)
    absent[list(labels)] = False
    return absent


def outcome_of(task: Task, order: Order, parameters: int, results: Tensor) -> Outcome:
    """What a device reports of its steps.

    `results` has three rows, as long as the order or longer: the loss of every step, and the squared norms of the
    score gradient over the slice and over the unit inside it, the latter for the first so many columns as there are
    measurements.
    """
    losses, *norms = results[:, : len(order.batches)].tolist()
    loss = sum(losses) / len(losses)
    scored = order.batches.shape[1] * task.train.targets[0].numel()
    whole, unit = (tuple(fisher_trace(norm, scored) for norm in row[: len(order.fisher_steps)]) for row in norms)
    if not all(isfinite(value) for value in (loss, *whole)):
        raise Diverged(f"training diverged on device {order.device}: its loss is {loss}; lr must be smaller")
    fisher = FisherEntry(order.level, parameters, whole, unit) if whole else None
    return Outcome(order.device, loss, fisher)
