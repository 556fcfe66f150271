"""3x3 convolutions as matrix products, where that is faster than the library's own kernels."""

from __future__ import annotations

from functools import cache
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
    return as_images(F.linear(patches(x), weight.permute(0, 2, 3, 1).flatten(1)), x.shape)


def convolve_tiny(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of images of few pixels as a product of their patches. On a processor that is faster than the
    library's kernels, which bring the weights into a layout of their own first."""
    return _Tiny.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


class _Tiny(torch.autograd.Function):
    """Rows are pixels: of patches (rows, 9 x inputs), of the result (rows, outputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        around, taps = patches(x), weight.permute(0, 2, 3, 1).flatten(1)
        ctx.save_for_backward(around, taps)
        ctx.shape = x.shape
        return as_images(product(around, taps), x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        around, taps = ctx.saved_tensors
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        of_taps = product(rows.t(), around.t())
        of_weight = of_taps.view(len(taps), 3, 3, -1).permute(0, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, of_weight
        return as_images(joined(product(rows, taps.t()), ctx.shape), ctx.shape), of_weight


def as_images(rows: Tensor, shape: torch.Size) -> Tensor:
    """Pixels as images of this size, channels last in memory."""
    return rows.view(shape[0], *shape[2:], -1).permute(0, 3, 1, 2)


def joined(around: Tensor, shape: torch.Size) -> Tensor:
    """For every pixel the sum over the patches it is part of: the transpose of `patches`."""
    images, channels, height, width = shape
    taps, begins = _taps_of_pixels(images, height, width)
    return F.embedding_bag(taps, around.view(-1, channels), begins, mode="sum")


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.t(), of float32 matrices on a processor by oneDNN where torch has it: torch itself takes MKL for
    them, which on some processors uses only half of the vector unit."""
    if left.is_cpu and left.dtype == torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")  # type: ignore[no-any-return]
    return left @ right.t()


@cache
def _taps_of_pixels(images: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Which taps of all patches see the first pixel, which the second, and so on; and where each pixel's begin."""
    pixels = torch.arange(1, images * height * width + 1).view(images, 1, height, width)  # 0 is beyond the edge
    around = patches(pixels).flatten()
    within = around.nonzero()[:, 0]
    owners, order = around[within].sort(stable=True)
    return within[order], torch.searchsorted(owners, pixels.flatten())
