"""GPU kernels for losses over very many classes, such as the words of a vocabulary.

Library operations hold the logits of a mini-batch in float32 several times over and go over them a dozen times; here
one program reads a row once for its loss and once for the gradient, as it came from the model. A row starts `pitch`
numbers after the one before, and of each the first `room` may be read: its classes, and perhaps a few numbers behind
them that mean nothing. (Numbers are read eight at a time only if the compiler sees that an eight is never cut: if
`room` is a multiple of eight.) *Absent* classes (bool, copies x room; each copy has `each` rows after one another) have
the logit 0 whatever the model says, and no gradient.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-3e38)
_IGNORED = tl.constexpr(-100)  # a target without a loss, as for torch


@triton.jit
def _row(logits_ptr, absent_ptr, row, begin, classes, room, pitch, each, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """A stretch of a row, -inf beyond its end; which of its classes are there, and which of them are trained."""
    c = begin + tl.arange(0, BLOCK)
    inside = c < classes
    x = tl.load(logits_ptr + row.to(tl.int64) * pitch + c, mask=c < room, other=float("-inf")).to(tl.float32)
    x = tl.where(inside, x, float("-inf"))
    owned = inside
    if MASKED:
        absent = tl.load(absent_ptr + (row // each) * room + c, mask=c < room, other=0) != 0
        x = tl.where(absent & inside, 0.0, x)
        owned = inside & (absent == 0)
    return x, inside, owned


@triton.jit
def _log_sum(logits_ptr, absent_ptr, row, classes, room, pitch, each, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """log of the sum of exp(logit) over a row; what is not a number makes it none."""
    largest, total = tl.full([BLOCK], _LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    for begin in range(0, classes, BLOCK):
        x, _, _ = _row(logits_ptr, absent_ptr, row, begin, classes, room, pitch, each, MASKED, BLOCK)
        larger = tl.maximum(largest, x)
        total = total * tl.exp(largest - larger) + tl.exp(x - larger)
        largest = larger
    top = tl.max(largest, axis=0)
    return top + tl.log(tl.sum(total * tl.exp(largest - top), axis=0))


@triton.jit
def losses(
    logits_ptr,
    absent_ptr,
    targets_ptr,
    losses_ptr,
    log_sums_ptr,
    classes,
    room,
    pitch,
    each,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """-log softmax at the target of each row, and the log of its sum."""
    row = tl.program_id(0)
    log_sum = _log_sum(logits_ptr, absent_ptr, row, classes, room, pitch, each, MASKED, BLOCK)
    target = tl.load(targets_ptr + row)
    known = (target >= 0) & (target < classes)
    x = tl.load(logits_ptr + row.to(tl.int64) * pitch + target, mask=known, other=float("nan")).to(tl.float32)
    if MASKED:
        absent = tl.load(absent_ptr + (row // each) * room + target, mask=known, other=0) != 0
        x = tl.where(absent, 0.0, x)
    tl.store(losses_ptr + row, tl.where(target == _IGNORED, 0.0, log_sum - x))
    tl.store(log_sums_ptr + row, log_sum)


@triton.jit
def slopes(
    logits_ptr,
    absent_ptr,
    targets_ptr,
    log_sums_ptr,
    slope_ptr,
    out_ptr,
    classes,
    room,
    pitch,
    each,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of the logits: that of the loss times (softmax - 1 at the target), and 0 behind the classes."""
    row, begin = tl.program_id(0), tl.program_id(1) * BLOCK
    log_sum, slope, target = tl.load(log_sums_ptr + row), tl.load(slope_ptr + row), tl.load(targets_ptr + row)
    slope = tl.where(target == _IGNORED, 0.0, slope)
    x, _, owned = _row(logits_ptr, absent_ptr, row, begin, classes, room, pitch, each, MASKED, BLOCK)
    c = begin + tl.arange(0, BLOCK)
    g = tl.where(owned, slope * (tl.exp(x - log_sum) - tl.where(c == target, 1.0, 0.0)), 0.0)
    tl.store(out_ptr + row.to(tl.int64) * pitch + c, g.to(out_ptr.dtype.element_ty), mask=c < room)


@triton.jit
def labels(
    logits_ptr,
    absent_ptr,
    draws_ptr,
    labels_ptr,
    classes,
    room,
    pitch,
    each,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many classes of each row lie before the one at which the cumulative softmax passes a draw."""
    row = tl.program_id(0)
    log_sum = _log_sum(logits_ptr, absent_ptr, row, classes, room, pitch, each, MASKED, BLOCK)
    draw = tl.load(draws_ptr + row)
    before, below = 0, 0.0
    for begin in range(0, classes, BLOCK):
        x, inside, _ = _row(logits_ptr, absent_ptr, row, begin, classes, room, pitch, each, MASKED, BLOCK)
        share = tl.exp(x - log_sum)
        passed = inside & (below + tl.cumsum(share, axis=0) < draw)
        before += tl.sum(passed.to(tl.int32), axis=0)
        below += tl.sum(share, axis=0)
    tl.store(labels_ptr + row, tl.minimum(before, classes - 1).to(tl.int64))
