"""A model's answers as the training loss sees them: the logits of classes that a device does not own are 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from whalefl.tasks.layers import fused_operations_work

MANY = 4096
"""Classes from which on a GPU fused losses take less time and memory than torch's operations."""


class Logits(Protocol):
    """One row a prediction."""

    def losses(self, targets: Tensor) -> Tensor:
        """The loss of every prediction."""
        ...

    def labels(self, draws: Tensor) -> Tensor:
        """A label from softmax(logits) for each row, by inverting the distribution at a uniform draw."""
        ...


@dataclass(frozen=True, eq=False)
class PlainLogits:
    """By torch's operations."""

    rows: Tensor

    def losses(self, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.rows, targets, reduction="none")

    def labels(self, draws: Tensor) -> Tensor:
        cumulative = self.rows.detach().softmax(dim=-1).cumsum(dim=-1)
        return (cumulative < draws[:, None]).sum(dim=-1).clamp(max=self.rows.shape[-1] - 1)


def training_logits(output: Tensor, absent: Tensor | None) -> Logits:
    """What the loss uses of a model's output; `absent` (copies x classes) marks whom a copy's device does not own."""
    rows = output.flatten(0, -2)
    if rows.is_cuda and rows.shape[-1] >= MANY and fused_operations_work("whalefl.tasks.word_losses"):
        from whalefl.tasks.word_losses import WordLogits

        return WordLogits(rows, absent)
    rows = rows.float()
    if absent is not None:
        rows = rows.view(len(absent), -1, rows.shape[-1]).masked_fill(absent[:, None], 0.0).flatten(0, 1)
    return PlainLogits(rows)
