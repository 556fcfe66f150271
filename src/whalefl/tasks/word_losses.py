"""Losses over very many classes as fused operations on a GPU (see `tasks.word_kernels`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.tasks import word_kernels

_BLOCK = 4096  # classes that one program holds at a time
_TRIED = 16  # rows, as a multiple of which the compiler takes the numbers of real ones


@dataclass(frozen=True, eq=False)
class WordLogits:
    """The logits of very many classes as they came from the model, one row a prediction; those that `absent` (copies x
    classes) marks are 0."""

    rows: Tensor
    absent: Tensor | None

    def losses(self, targets: Tensor) -> Tensor:
        """The loss of every prediction."""
        return _Losses.apply(self.rows, self._marks, targets)  # type: ignore[no-any-return, no-untyped-call]

    def labels(self, draws: Tensor) -> Tensor:
        """A label from softmax(logits) for each row, by inverting the distribution at a uniform draw."""
        rows, found = _readable(self.rows.detach()), torch.empty(len(draws), dtype=torch.int64, device=draws.device)
        word_kernels.labels[(len(rows),)](rows, _given(rows, self._marks), draws, found, **_sizes(rows, self._marks))
        return found

    @cached_property
    def _marks(self) -> Tensor | None:
        """Absent classes in rows with the room that the logits have."""
        if self.absent is None:
            return None
        rows = _readable(self.rows.detach())
        return F.pad(self.absent, (0, _room(rows) - rows.shape[1]))


def try_out(place: str) -> None:
    """Do all operations once on a few rows, and compare with torch's own; whatever is wrong is raised.

    The rows are of the form that real ones have, so that what is compiled here serves them too.
    """
    numbers = torch.arange(_TRIED * (_BLOCK + 64), device=place).view(_TRIED, -1)
    rows = (3 * numbers.sin()).to(torch.bfloat16)[:, : _BLOCK + 2].requires_grad_()
    targets, draws = numbers[:, 0] % rows.shape[1], (numbers[:, 0] + 0.5) / numbers.numel()
    for absent in (None, numbers[:1, : rows.shape[1]] % 3 == 1):
        plain = rows.float() if absent is None else rows.float().masked_fill(absent, 0.0)
        words, losses = WordLogits(rows, absent), F.cross_entropy(plain, targets, reduction="none")
        found = words.losses(targets)
        torch.testing.assert_close(found, losses, rtol=1e-4, atol=1e-4)
        slopes = [torch.autograd.grad(every.sum(), rows)[0] for every in (found, losses)]
        torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-5)
        before = plain.softmax(dim=1).cumsum(dim=1) < draws[:, None]
        torch.testing.assert_close(words.labels(draws), before.sum(dim=1), rtol=0, atol=1)


def _readable(rows: Tensor) -> Tensor:
    """Rows whose numbers lie side by side; there may be room between two rows."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _sizes(rows: Tensor, marks: Tensor | None) -> dict[str, int]:
    count, classes = rows.shape
    each = count if marks is None else count // len(marks)
    return {
        "classes": classes,
        "room": _room(rows),
        "pitch": rows.stride(0),
        "each": each,
        "MASKED": marks is not None,
        "BLOCK": min(_BLOCK, triton.next_power_of_2(classes)),
    }


def _room(rows: Tensor) -> int:
    """How many numbers of every row may be read: up to the next row, if the last row too has so many."""
    count, classes = rows.shape
    pitch, stored = rows.stride(0), rows.untyped_storage().nbytes() // rows.itemsize
    return pitch if pitch > classes and rows.storage_offset() + count * pitch <= stored else classes


def _given(rows: Tensor, marks: Tensor | None) -> Tensor:
    """A kernel is given something to point to even where it is not to look."""
    return rows if marks is None else marks


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, marks: Tensor | None, targets: Tensor) -> Tensor:
        rows = _readable(rows)
        losses, log_sums = torch.empty(2, len(rows), device=rows.device).unbind()
        word_kernels.losses[(len(rows),)](rows, _given(rows, marks), targets, losses, log_sums, **_sizes(rows, marks))
        ctx.save_for_backward(rows, marks, targets, log_sums)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, marks, targets, log_sums = ctx.saved_tensors
        sizes = _sizes(rows, marks)
        of_rows = torch.empty(len(rows), sizes["pitch"], dtype=rows.dtype, device=rows.device)[:, : rows.shape[1]]
        grid = (len(rows), triton.cdiv(sizes["classes"], sizes["BLOCK"]))
        word_kernels.slopes[grid](rows, _given(rows, marks), targets, log_sums, slope.contiguous(), of_rows, **sizes)
        return of_rows, None, None
