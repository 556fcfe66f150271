"""One mini-batch of local training on tensors: loss, gradient, Fisher measurement, SGD.

A step trains a stack: one device, or several with slices of one shape side by side in one model (see
`federation.stacks`). Nothing in it waits for a result or depends on one, so that an engine may record a step once and
replay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from whalefl.federation.halves import like, renew
from whalefl.federation.logits import Logits, training_logits
from whalefl.federation.training import Training
from whalefl.native.sgd import Descent
from whalefl.subnet.aggregation import by_copy
from whalefl.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Batch:
    """A mini-batch for each copy: example indices (copies x batch), uniform numbers for augmentation, and for a
    Fisher measurement (None: none)."""

    indices: Tensor
    augment_draws: Tensor | None
    fisher_draws: Tensor | None


@dataclass(frozen=True, eq=False)
class Learner:
    """`copies` slices in training: their model, its weights that are trained, and the momentum of each.

    `leaves` are what the model computes with: these weights, or copies of them in 16 bits (see `federation.halves`).
    A `descent`, where there is one, makes the steps, and renews such copies. `absent` (copies x classes) marks the
    classes whose logits are 0 in the loss (None: none); `unit` is 1 where a coordinate of a weight belongs to the
    smallest slice and 0 elsewhere.
    """

    model: nn.Module
    copies: int
    weights: list[Tensor]
    leaves: list[Tensor]
    momentum: list[Tensor]
    absent: Tensor | None
    unit: list[Tensor]
    descent: Descent | None = None

    @cached_property
    def in_memory(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        """For each copy its weights and their momentum, as they lie in memory."""
        parts = (by_copy([t.detach() for t in tensors], self.copies) for tensors in (self.weights, self.momentum))
        return [(as_in_memory(weights), as_in_memory(momentum)) for weights, momentum in zip(*parts, strict=True)]


@dataclass(frozen=True, eq=False)
class Measured:
    """Of each copy: the loss of a step, and the squared norms of its score gradient over the slice and its unit."""

    loss: Tensor
    whole: Tensor | None = None
    unit: Tensor | None = None


def training_step(task: Task, training: Training, learner: Learner, batch: Batch, lr: float | Tensor) -> Measured:
    """Train a learner on one mini-batch, in place."""
    if learner.descent is None:
        renew(learner.leaves, learner.weights)
    augment = None if batch.augment_draws is None else batch.augment_draws.flatten(0, 1)
    inputs = task.training_inputs(batch.indices.flatten(), augment)
    targets = task.train.targets[batch.indices].flatten()
    logits = training_logits(learner.model(inputs), learner.absent)
    whole = unit = None
    if batch.fisher_draws is not None:
        logits_measured = fisher_logits(learner, inputs, logits)
        found = sampled_gradient(logits_measured, batch.fisher_draws, learner.leaves, learner.copies)
        scores = like(learner.weights, found)
        whole = squared_norms(scores, learner.copies)
        torch._foreach_mul_(scores, learner.unit)
        unit = squared_norms(scores, learner.copies)
    losses = copy_losses(logits, targets, learner.copies)
    found = torch.autograd.grad(losses.sum(), learner.leaves)
    if learner.descent is not None:
        learner.descent.step(found, float(lr), training.momentum, training.weight_decay, training.clip)
    else:
        sgd_step(training, lr, learner, like(learner.weights, found))
    return Measured(losses.detach(), whole, unit)


def copy_losses(logits: Logits, targets: Tensor, copies: int) -> Tensor:
    """The mean loss of each copy over its own predictions."""
    return logits.losses(targets).view(copies, -1).mean(dim=1)


def has_dropout(model: nn.Module) -> bool:
    """Whether the model has layers of dropout. (Dropout called as a function is not seen: such a model is measured as
    it is trained.)"""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


def fisher_logits(learner: Learner, inputs: Tensor, logits: Logits) -> Logits:
    """The logits that Fisher information is measured on: those of training, or without dropout where there is any."""
    if not has_dropout(learner.model):
        return logits
    learner.model.eval()
    try:
        return training_logits(learner.model(inputs), learner.absent)
    finally:
        learner.model.train()


def sampled_gradient(logits: Logits, draws: Tensor, leaves: Sequence[Tensor], copies: int = 1) -> Sequence[Tensor]:
    """The gradient of each copy's mean loss for labels drawn from the model itself: one extra backward pass."""
    labels = logits.labels(draws.flatten())
    return torch.autograd.grad(copy_losses(logits, labels, copies).sum(), leaves, retain_graph=True)


def squared_norms(tensors: Sequence[Tensor], copies: int = 1) -> Tensor:
    """The sum of all squares of each copy's tensors, in float64."""
    return norms(tensors, copies, torch.float64).square()


def norms(tensors: Sequence[Tensor], copies: int, dtype: torch.dtype) -> Tensor:
    """The norm of all of each copy's tensors together."""
    parts = [part for copy in by_copy(tensors, copies) for part in copy]
    own = torch.stack(torch._foreach_norm(parts)).view(copies, -1)
    together: Tensor = torch.linalg.vector_norm(own, dim=1, dtype=dtype)
    return together


@torch.no_grad()
def sgd_step(training: Training, lr: float | Tensor, learner: Learner, steps: Sequence[Tensor]) -> None:
    """One step of SGD in place: clip each copy's gradient, add the decay, update the momentum, move the weights."""
    scales: Sequence[Tensor | None] = [None] * learner.copies
    if training.clip > 0:  # a gradient is divided by its scale
        lengths = norms(steps, learner.copies, torch.float32)
        scales = ((lengths + 1e-6) / training.clip).clamp(min=1.0).unbind()
    own = by_copy(steps, learner.copies)
    for (weights, momentum), gradient, scale in zip(learner.in_memory, own, scales, strict=True):
        torch._fused_sgd_(
            weights,
            as_in_memory(gradient),
            momentum if training.momentum > 0 else [],
            weight_decay=training.weight_decay,
            momentum=training.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=scale,
        )


def as_in_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of dense tensors in the order of their memory, so that one pass goes over tensors of one layout alike."""
    return [tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
