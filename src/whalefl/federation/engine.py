"""Engines carry out a round's orders, and score the model. The plain one does one after another in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.errors import Diverged
from whalefl.federation.evaluation import Score, evaluate
from whalefl.federation.local_training import train_stack
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.stacks import LARGEST, Desk, Key, Precision, Stack, arrange, collect, load, resident, stack_key
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights
from whalefl.tasks.task import Task

# By default a GPU takes work from 8 queues, and streams that share one wait for each other; and every recorded step
# keeps 32 MB of scratch memory for matrix products, of which 8 are plenty. Both have to be said before the GPU is first
# used.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2")


Ask = tuple[Weights, Sequence[Order]]
"""A round to be trained: the global model and the orders."""

Answer = tuple[PartialSums, list[Outcome]]
"""Sums of slices, and one outcome for each order."""


class Engine(Protocol):
    """Whatever can train a round: what comes back are sums of slices, which may be overwritten when it trains the next
    one, and one outcome for each order."""

    def train(self, weights: Weights, orders: Sequence[Order]) -> Answer: ...

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        """The whole model on the test set, with batch-norm statistics over these training samples."""
        ...

    def close(self) -> None:
        """Give back whatever the engine holds beside memory."""


@runtime_checkable
class EngineOfSeveral(Engine, Protocol):
    """One that trains the rounds of several runs at once, as a GPU can that one round does not fill."""

    def train_all(self, asks: Sequence[Ask]) -> Sequence[Answer | Diverged]: ...


def train_all(engine: Engine, asks: Sequence[Ask]) -> Iterator[Answer | Diverged]:
    """Train a round of each of several runs: at once if the engine can, else one when the one before is dealt with."""
    if isinstance(engine, EngineOfSeveral):
        yield from engine.train_all(asks)
        return
    for weights, orders in asks:
        try:
            answer: Answer | Diverged = engine.train(weights, orders)
        except Diverged as error:
            answer = error
        yield answer


class PlainEngine:
    """One stack after another in this process; it works where the task's data lies.

    Its stacks hold at most `largest` narrow slices; with 1 it trains one device after another.
    """

    def __init__(self, task: Task, training: Training, precision: Precision = "fp32", largest: int = LARGEST) -> None:
        self.task, self.training, self.precision, self.largest = task, training, precision, largest
        if task.train.inputs.is_cuda:
            use_precision(precision)
        self._desk = Desk(task.axes.count, len(task.axes.shapes))
        self._stacks: dict[Key, Stack] = {}

    def close(self) -> None:
        """There is nothing to give back."""

    def train(self, weights: Weights, orders: Sequence[Order]) -> Answer:
        sums = PartialSums(self.task.axes, flat=self._sums.zero_())
        return sums, self.train_groups(weights, arrange(self.task, orders, self.largest), sums)

    def train_groups(self, weights: Weights, groups: Sequence[Sequence[Order]], sums: PartialSums) -> list[Outcome]:
        """Train these groups of orders and add their slices to the sums."""
        outcomes = []
        for group in groups:
            stack = self._stack(group)
            load(self.task.axes, weights, stack, group)
            outcomes += train_stack(stack, group)
            collect(sums, stack, group)
        return outcomes

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        return evaluate(self.task, self.whole, weights, calibration)

    @cached_property
    def _sums(self) -> Tensor:
        """Memory for the sums of a round, as large as two models: asked for once."""
        return torch.empty(self.task.axes.count, dtype=torch.float64, device=self.task.train.inputs.device)

    @cached_property
    def whole(self) -> nn.Module:
        """The whole model, to be evaluated."""
        return whole_model(self.task)

    def _stack(self, group: Sequence[Order]) -> Stack:
        key = (*stack_key(group[0]), len(group))
        if key not in self._stacks:
            self._stacks[key] = Stack(self.task, self.training, group[0], len(group), self.precision, desk=self._desk)
        return self._stacks[key]


def whole_model(task: Task) -> nn.Module:
    """The model at full width where the task's data lies."""
    return resident(task.build(task.full), task.train.inputs.device)


def use_precision(precision: Precision) -> None:
    """Let a GPU's matrix products and convolutions round their inputs to tf32, or not; the latter by the fastest of
    its algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
