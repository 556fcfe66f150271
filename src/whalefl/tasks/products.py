"""3x3 convolutions as matrix products, where that is faster than the library's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def patches(x: Tensor) -> Tensor:
    """The 3x3 patch around every pixel, 0 beyond the edge: (pixels of all images, 9 x channels), channels last."""
    around = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
    return around.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(0, 2)


def convolve_grey(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of images with one channel: on a GPU its kernels take twice the time of these products."""
    images, _, height, width = x.shape
    products = F.linear(patches(x), weight.permute(0, 2, 3, 1).flatten(1))
    return products.view(images, height, width, -1).permute(0, 3, 1, 2)


def convolve_tiny(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of images of few pixels, tap by tap: for each of its nine weights one product over the pixels whose
    neighbour there lies inside the image, which of 3x3 pixels are 49 in 81. On a processor that is faster than the
    library's kernels, which bring the weights into a layout of their own first; in bf16 it is not."""
    return _Tiny.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


class _Tiny(torch.autograd.Function):
    """All tensors inside have their channels last: images (N, H, W, channels), weights (outputs, 3, 3, inputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows, taps = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
        found = rows @ taps[:, 1, 1].t()
        for here, there, row, column in _outer_taps():
            found[here] += rows[there] @ taps[:, row, column].t()
        return found.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        rows, taps = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
        above = gradient.permute(0, 2, 3, 1)
        of_taps = torch.empty_like(taps)
        of_rows = above @ taps[:, 1, 1] if ctx.needs_input_grad[0] else None
        torch.mm(above.flatten(0, 2).t(), rows.flatten(0, 2), out=of_taps[:, 1, 1])
        for here, there, row, column in _outer_taps():
            if of_rows is not None:
                of_rows[there] += above[here] @ taps[:, row, column]
            torch.mm(above[here].flatten(0, 2).t(), rows[there].flatten(0, 2), out=of_taps[:, row, column])
        return None if of_rows is None else of_rows.permute(0, 3, 1, 2), of_taps.permute(0, 3, 1, 2)


Region = tuple[slice, slice, slice]


def _outer_taps() -> Iterator[tuple[Region, Region, int, int]]:
    """The eight weights around the middle one: which pixels they add to, from which, and their row and column."""
    every, first, last = slice(None), slice(None, -1), slice(1, None)
    reach = [(last, first), (every, every), (first, last)]  # of rows, and of columns: pixels, and their neighbours
    for row, (pixel_rows, rows) in enumerate(reach):
        for column, (pixel_columns, columns) in enumerate(reach):
            if (row, column) != (1, 1):
                yield (every, pixel_rows, pixel_columns), (every, rows, columns), row, column
