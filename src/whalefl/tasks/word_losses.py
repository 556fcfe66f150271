"""Losses over very many classes as fused operations on a GPU (see `tasks.word_kernels`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.tasks import word_kernels

_BLOCK = 4096  # classes that one program holds at a time


@dataclass(frozen=True, eq=False)
class WordLogits:
    """The logits of very many classes as they came from the model, one row a prediction; those that `absent` (copies x
    classes) marks are 0."""

    rows: Tensor
    absent: Tensor | None

    def losses(self, targets: Tensor) -> Tensor:
        """The loss of every prediction."""
        return _Losses.apply(self.rows, self.absent, targets)  # type: ignore[no-any-return, no-untyped-call]

    def labels(self, draws: Tensor) -> Tensor:
        """A label from softmax(logits) for each row, by inverting the distribution at a uniform draw."""
        rows, found = _readable(self.rows.detach()), torch.empty(len(draws), dtype=torch.int64, device=draws.device)
        sizes = _sizes(rows, self.absent)
        word_kernels.labels[(len(rows),)](rows, _marks(rows, self.absent), draws, found, **sizes)
        return found


def _readable(rows: Tensor) -> Tensor:
    """Rows whose numbers lie side by side; there may be room between two rows."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _sizes(rows: Tensor, absent: Tensor | None) -> dict[str, int]:
    count, classes = rows.shape
    each = count if absent is None else count // len(absent)
    return {
        "classes": classes,
        "room": _room(rows),
        "pitch": rows.stride(0),
        "each": each,
        "MASKED": absent is not None,
        "BLOCK": min(_BLOCK, triton.next_power_of_2(classes)),
    }


def _room(rows: Tensor) -> int:
    """How many numbers of every row may be read: up to the next row, if the last row too has so many."""
    count, classes = rows.shape
    pitch, stored = rows.stride(0), rows.untyped_storage().nbytes() // rows.itemsize
    return pitch if pitch > classes and rows.storage_offset() + count * pitch <= stored else classes


def _marks(rows: Tensor, absent: Tensor | None) -> Tensor:
    """Absent classes in rows of the same room. A kernel is given something to point to even where it is not to look."""
    return rows if absent is None else F.pad(absent, (0, _room(rows) - rows.shape[1]))


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, absent: Tensor | None, targets: Tensor) -> Tensor:
        rows = _readable(rows)
        losses, log_sums = torch.empty(2, len(rows), device=rows.device).unbind()
        word_kernels.losses[(len(rows),)](rows, _marks(rows, absent), targets, losses, log_sums, **_sizes(rows, absent))
        ctx.save_for_backward(rows, absent, targets, log_sums)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, absent, targets, log_sums = ctx.saved_tensors
        sizes = _sizes(rows, absent)
        of_rows = torch.empty(len(rows), sizes["pitch"], dtype=rows.dtype, device=rows.device)[:, : rows.shape[1]]
        grid = (len(rows), triton.cdiv(sizes["classes"], sizes["BLOCK"]))
        word_kernels.slopes[grid](rows, _marks(rows, absent), targets, log_sums, slope.contiguous(), of_rows, **sizes)
        return of_rows, None, None
