"""One mini-batch of local training on tensors: loss, gradient, Fisher measurement, SGD.

Nothing in it waits for a result or depends on one, so that an engine may record a step once and replay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from whalefl.federation.training import Training
from whalefl.subnet.slicing import Index
from whalefl.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Batch:
    """One mini-batch: example indices, uniform numbers for augmentation, and for a Fisher measurement (None: none)."""

    indices: Tensor
    augment_draws: Tensor | None
    fisher_draws: Tensor | None


@dataclass(frozen=True, eq=False)
class Learner:
    """A slice in training: its model, and its weights and momentum by name in the model's own order.

    `absent` marks the classes whose logits are 0 in the loss (None: none); `unit` selects from every parameter the
    coordinates of the smallest slice.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    momentum: list[Tensor]
    absent: Tensor | None
    unit: dict[str, Index]


@dataclass(frozen=True, eq=False)
class Measured:
    """The loss of a step, and the squared norms of its score gradient over the slice and over the unit inside it."""

    loss: Tensor
    whole: Tensor | None = None
    unit: Tensor | None = None


def training_step(task: Task, training: Training, learner: Learner, batch: Batch, lr: float | Tensor) -> Measured:
    """Train a learner on one mini-batch, in place."""
    inputs = task.training_inputs(batch.indices, batch.augment_draws)
    targets = task.train.targets[batch.indices].flatten()
    logits = training_logits(learner.model(inputs), learner.absent)
    weights = list(learner.weights.values())
    whole = unit = None
    if batch.fisher_draws is not None:
        scores = sampled_gradient(fisher_logits(learner, inputs, logits), batch.fisher_draws, weights)
        whole = squared_norm(scores)
        unit = squared_norm([s[learner.unit[name]] for name, s in zip(learner.weights, scores, strict=True)])
    loss = F.cross_entropy(logits, targets)
    sgd_step(training, lr, weights, torch.autograd.grad(loss, weights), learner.momentum)
    return Measured(loss.detach(), whole, unit)


def training_logits(output: Tensor, absent: Tensor | None) -> Tensor:
    """The logits that the loss uses, one row a prediction; those of classes the device does not own are 0."""
    logits = output.flatten(0, -2).float()
    return logits if absent is None else logits.masked_fill(absent, 0.0)


def has_dropout(model: nn.Module) -> bool:
    """Whether the model behaves differently in training than in evaluation."""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


def fisher_logits(learner: Learner, inputs: Tensor, logits: Tensor) -> Tensor:
    """The logits that Fisher information is measured on: those of training, or without dropout where there is any."""
    if not has_dropout(learner.model):
        return logits
    learner.model.eval()
    try:
        return training_logits(learner.model(inputs), learner.absent)
    finally:
        learner.model.train()


def sampled_gradient(logits: Tensor, draws: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of the mean loss for labels drawn from the model itself: one extra backward pass."""
    labels = sampled_labels(logits.detach(), draws.flatten())
    return torch.autograd.grad(F.cross_entropy(logits, labels), weights, retain_graph=True)


def sampled_labels(logits: Tensor, draws: Tensor) -> Tensor:
    """A label from softmax(logits) for each row, by inverting the distribution at a uniform draw."""
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    return (cumulative < draws[:, None]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)


def squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all squares, in float64."""
    return torch.stack(torch._foreach_norm(list(tensors))).double().square().sum()


def sgd_step(
    training: Training,
    lr: float | Tensor,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momentum: Sequence[Tensor],
) -> None:
    """One step of SGD in place: clip the gradient, add the decay, update the momentum, move the weights."""
    with torch.no_grad():
        steps = list(gradients)
        if training.clip > 0:
            norm = torch.stack(torch._foreach_norm(steps)).square().sum().sqrt()
            factor = (training.clip / (norm + 1e-6)).clamp(max=1.0)
            steps = list(torch._foreach_mul(steps, factor))
        if training.weight_decay > 0:
            torch._foreach_add_(steps, list(weights), alpha=training.weight_decay)
        torch._foreach_mul_(list(momentum), training.momentum)
        torch._foreach_add_(list(momentum), steps)
        if isinstance(lr, Tensor):
            torch._foreach_add_(list(weights), torch._foreach_mul(list(momentum), -lr))
        else:
            torch._foreach_add_(list(weights), list(momentum), alpha=-lr)
