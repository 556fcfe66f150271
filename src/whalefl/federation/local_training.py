"""What one device does in a round: SGD on its slice, and the squared gradient norms behind its Fisher information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.errors import WhaleflError, require, require_finite_number, require_one_of
from whalefl.scheduling.fisher import FisherEntry, fisher_trace
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.axes import Axes, Plan
from whalefl.subnet.slicing import index_of, inside, sliced_axes
from whalefl.tasks.task import Task


@dataclass(frozen=True)
class Training:
    """Local training: K `iterations` a round, or `epochs` over the device's data; SGD with a fresh momentum each round.

    `clip` bounds the norm of the gradient (0: no bound). `schedule` lets the rate fall with the rounds, from `lr` to
    0 along half a cosine. With `masked_logits`, the logits of classes a device does not own are set to 0 in its loss.
    """

    iterations: int = 10
    epochs: float | None = None
    batch: int = 64
    lr: float = 0.01
    schedule: Literal["constant", "cosine"] = "constant"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    masked_logits: bool = True

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations", self.iterations, "at least 1")
        if self.epochs is not None:
            require_finite_number("epochs", self.epochs, above=0)
        require(self.batch >= 2, "batch", self.batch, "at least 2, since batch norm needs two samples")
        require_finite_number("lr", self.lr, above=0)
        require_one_of("schedule", self.schedule, ("constant", "cosine"))
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require_finite_number("weight_decay", self.weight_decay, least=0)
        require_finite_number("clip", self.clip, least=0)

    def batches(self, examples: int) -> int:
        """The mini-batches of a round on a device with this many examples."""
        if self.epochs is None:
            return self.iterations
        return max(1, round(self.epochs * examples / self.batch))

    def rate(self, number: int, rounds: int) -> float:
        """The learning rate of a round out of `rounds`."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + cos(pi * min(1.0, (number - 1) / rounds)))


@dataclass(frozen=True, eq=False)
class Order:
    """Everything a device needs for a round, all chance in it already drawn.

    `batches` holds example indices (mini-batches x batch) and `augment_draws` the uniform numbers that change each of
    them at random (None: nothing does); `noise_seed` seeds dropout; `labels` are the classes the loss may use (None:
    all);
    `fisher_steps` the mini-batches on which Fisher information is measured, and `fisher_draws` a uniform number for
    each prediction scored there; `unit_plan` is the smallest slice inside this one.
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
    if has_dropout(model):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(order.noise_seed)
            return _train(task, model, training, order)
    return _train(task, model, training, order)


def has_dropout(model: nn.Module) -> bool:
    """Whether the model behaves differently in training than in evaluation."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _train(task: Task, model: nn.Module, training: Training, order: Order) -> Outcome:
    parameters = dict(model.named_parameters())
    weights: list[Tensor] = list(parameters.values())
    momentum: list[Tensor] = []
    losses, traces, units = [], [], []
    place = task.train.inputs.device
    augment_draws = None if order.augment_draws is None else torch.from_numpy(order.augment_draws).to(place)
    fisher_draws = torch.from_numpy(order.fisher_draws).to(place)
    for step, indices in enumerate(torch.from_numpy(order.batches).to(place)):
        uniforms = None if augment_draws is None else augment_draws[step]
        inputs, targets = task.training_inputs(indices, uniforms), task.train.targets[indices]
        logits = training_logits(model(inputs), order.labels)
        if step in order.fisher_steps:
            draws = fisher_draws[order.fisher_steps.index(step)]
            scores = sampled_gradient(fisher_logits(model, inputs, logits, order.labels), draws, weights)
            scored = targets.numel()
            traces.append(fisher_trace(squared_norm(scores), scored))
            unit = unit_part(task.axes, order, dict(zip(parameters, scores, strict=True)))
            units.append(fisher_trace(squared_norm(unit), scored))
        loss = F.cross_entropy(logits, targets.flatten())
        gradients = torch.autograd.grad(loss, weights)
        sgd_step(training, order.lr, weights, gradients, momentum)
        losses.append(loss.detach())
    mean_loss = float(torch.stack(losses).mean())
    if not np.isfinite(mean_loss):
        raise WhaleflError(f"training diverged on device {order.device}: its loss is {mean_loss}; lr must be smaller")
    entry = None
    if traces:
        count = sum(weight.numel() for weight in weights)
        entry = FisherEntry(order.level, count, tuple(traces), tuple(units))
    return Outcome(order.device, mean_loss, entry)


def training_logits(output: Tensor, labels: tuple[int, ...] | None) -> Tensor:
    """The logits that the loss uses, one row a prediction; those of classes the device does not own are 0."""
    logits = output.flatten(0, -2)
    if labels is None:
        return logits
    absent = torch.ones(logits.shape[-1], dtype=torch.bool, device=logits.device)
    absent[list(labels)] = False
    return logits.masked_fill(absent, 0.0)


def fisher_logits(model: nn.Module, inputs: Tensor, logits: Tensor, labels: tuple[int, ...] | None) -> Tensor:
    """The logits that Fisher information is measured on: those of training, or without dropout where there is any."""
    if not has_dropout(model):
        return logits
    model.eval()
    try:
        return training_logits(model(inputs), labels)
    finally:
        model.train()


def sampled_gradient(logits: Tensor, draws: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of the mean loss for labels drawn from the model itself: one extra backward pass."""
    labels = sampled_labels(logits.detach(), draws.flatten())
    return torch.autograd.grad(F.cross_entropy(logits, labels), weights, retain_graph=True)


def sampled_labels(logits: Tensor, draws: Tensor) -> Tensor:
    """A label from softmax(logits) for each row, by inverting the distribution at a uniform draw."""
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    return (cumulative < draws[:, None]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)


def unit_part(axes: Axes, order: Order, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The coordinates of the smallest slice within tensors of the shape of this order's slice."""
    positions = sliced_axes(axes, order.plan).parameter_positions(inside(order.plan, order.unit_plan))
    return [tensors[name][index_of(kept)] for name, kept in positions.items()]


def squared_norm(tensors: Sequence[Tensor]) -> float:
    norms = torch._foreach_norm(list(tensors))
    return float(torch.stack(norms).double().square().sum())


def sgd_step(
    training: Training, lr: float, weights: list[Tensor], gradients: Sequence[Tensor], momentum: list[Tensor]
) -> None:
    """One step of SGD in place: clip the gradient, add the decay, update the momentum, move the weights."""
    with torch.no_grad():
        steps = list(gradients)
        if training.clip > 0:
            norm = torch.stack(torch._foreach_norm(steps)).square().sum().sqrt()
            factor = (training.clip / (norm + 1e-6)).clamp(max=1.0)
            steps = list(torch._foreach_mul(steps, factor))
        if training.weight_decay > 0:
            torch._foreach_add_(steps, weights, alpha=training.weight_decay)
        if momentum:
            torch._foreach_mul_(momentum, training.momentum)
            torch._foreach_add_(momentum, steps)
        else:
            momentum.extend(steps)
        torch._foreach_add_(weights, momentum, alpha=-lr)
