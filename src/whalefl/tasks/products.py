"""3x3 convolutions as matrix products, where that is faster than the library's own kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input


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
    """A convolution of images of few pixels: on a processor the kernel for its weights' gradient takes four times the
    time of this product."""
    return _Tiny.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


class _Tiny(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = conv2d_input(x.shape, weight, gradient, padding=1)  # type: ignore[no-untyped-call]
        outputs, inputs = weight.shape[:2]
        rows = gradient.permute(0, 2, 3, 1).reshape(-1, outputs)
        of_weight = (rows.t() @ patches(x)).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)
        return of_x, of_weight
