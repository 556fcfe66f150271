"""Engines carry out a round's orders. The plain one trains one device after another in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import nn

from whalefl.federation.local_training import Order, Outcome, train_slice
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights, cut
from whalefl.tasks.task import Shape, Task

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


class Engine(Protocol):
    """Whatever can train a round: what comes back are sums of slices and one outcome for each order."""

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]: ...


class PlainEngine:
    """One device after another, on one model per shape that stays in memory; it works where the task's data lies."""

    def __init__(self, task: Task, training: Training) -> None:
        self.task = task
        self.training = training
        self._place = task.train.inputs.device
        self._models: dict[tuple[float, ...], nn.Module] = {}

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        sums, outcomes = PartialSums(self.task.axes, self._place), []
        for order in orders:
            model = self._model(Shape.of(order.plan, order.width))
            piece = cut(self.task.axes, weights, order.plan)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(piece[name])
            outcomes.append(train_slice(self.task, model, self.training, order))
            sums.add(order.contribution, dict(model.named_parameters()))
        return sums, outcomes

    def _model(self, shape: Shape) -> nn.Module:
        key = (*shape.sizes.values(), shape.ratio)  # narrow levels may round to the same sizes
        if key not in self._models:
            self._models[key] = self.task.build(shape).to(self._place).train()
        return self._models[key]


def use_precision(precision: Precision) -> None:
    """Let matrix products and convolutions round their inputs to tf32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
