"""Batch norm, max pool and ReLU as one operation on a GPU, and a whole block on grey images (see `tasks.kernels`).

They train; a model is evaluated by torch's own operations. Triton, which they are written in, comes with torch where
there is a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from whalefl.tasks import kernels

_SPLITS = 32  # parts that a sum over all pixels is taken in
_TILE = 2048  # numbers that one program holds of an activation
_CHANNELS = 64  # of them at most
_PATCHES = 256  # that one program multiplies at a time


def norm_pool_relu(x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: tuple[int, int]) -> Tensor:
    """relu(max_pool(batch_norm(x))) with the statistics of the batch, for images with their channels last."""
    return _NormPoolRelu.apply(x, weight, bias, eps, pool)  # type: ignore[no-any-return, no-untyped-call]


def grey_block(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """relu(max_pool(batch_norm(convolution of x))) of images with one channel, 3x3 weights and a pool of 2x2.

    The image itself gets no gradient: it is the first layer's.
    """
    return _GreyBlock.apply(x, kernel, weight, bias, eps)  # type: ignore[no-any-return, no-untyped-call]


def _blocks(channels: int, least: int = 1) -> dict[str, int]:
    """How many channels a program takes, and how many pixels of each."""
    width = max(least, min(_CHANNELS, triton.next_power_of_2(channels)))
    return {"BC": width, "BQ": _TILE // width}


def _grid(pixels: int, channels: int, blocks: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(pixels, blocks["BQ"]), triton.cdiv(channels, blocks["BC"])


def _images(x: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Room for images (examples, channels, height, width) with their channels last."""
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


class _NormPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: tuple[int, int]) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        (examples, channels, height, width), (ph, pw) = x.shape, pool
        rows, blocks = examples * height * width, _blocks(channels)
        parts = torch.empty(2, _SPLITS, channels, device=x.device)
        grid = (_SPLITS, triton.cdiv(channels, blocks["BC"]))
        kernels.moments[grid](x, parts, rows, channels, SPLITS=_SPLITS, BR=blocks["BQ"], BC=blocks["BC"])
        out = _images(x, examples, channels, height // ph, width // pw)
        windows = examples * (height // ph) * (width // pw)
        kernels.normed[_grid(windows, channels, blocks)](
            x, parts, weight, bias, out, windows, rows, channels, height, width, eps,
            SPLITS=_SPLITS, PH=ph, PW=pw, **blocks,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, parts)
        ctx.eps, ctx.pool = eps, pool
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, parts = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        (examples, channels, height, width), (ph, pw) = x.shape, ctx.pool
        rows, blocks = examples * height * width, _blocks(channels)
        sums, of_x = torch.empty_like(parts), torch.empty_like(x)
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(bias)
        shared = {"SPLITS": _SPLITS, "PH": ph, "PW": pw, **blocks}
        whole = examples * (height // ph) * (width // pw)
        kernels.reduced[(_SPLITS, triton.cdiv(channels, blocks["BC"]))](
            x, parts, weight, bias, slope, sums, whole, rows, channels, height, width, ctx.eps, **shared
        )
        windows = examples * triton.cdiv(height, ph) * triton.cdiv(width, pw)
        kernels.spread[_grid(windows, channels, blocks)](
            x, parts, weight, bias, slope, sums, of_x, of_weight, of_bias,
            windows, rows, channels, height, width, ctx.eps, **shared,
        )  # fmt: skip
        return of_x, of_weight, of_bias, None, None


class _GreyBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        (examples, _, height, width), channels = x.shape, len(kernel)
        pixels, blocks = examples * height * width, _blocks(channels, least=16)
        parts = torch.empty(_SPLITS, 16, 16, device=x.device)
        found = torch.empty(2, channels, device=x.device)
        kernels.patch_products[(_SPLITS,)](x, parts, pixels, height, width, SPLITS=_SPLITS, BR=_PATCHES)
        kernels.grey_statistics[(triton.cdiv(channels, blocks["BC"]),)](
            kernel, parts, found, pixels, channels, eps, SPLITS=_SPLITS, BC=blocks["BC"]
        )
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        out = _images(x, examples, channels, height // 2, width // 2, dtype=dtype)
        windows = examples * (height // 2) * (width // 2)
        kernels.grey_normed[_grid(windows, channels, blocks)](
            x, kernel, found, weight, bias, out, windows, channels, height, width, **blocks
        )
        ctx.save_for_backward(x, kernel, weight, bias, parts, found)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, weight, bias, parts, found = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        (examples, _, height, width), channels = x.shape, len(kernel)
        blocks = _blocks(channels, least=16)
        sums = torch.empty(_SPLITS, 16, channels, device=x.device)
        windows, columns = examples * (height // 2) * (width // 2), triton.cdiv(channels, blocks["BC"])
        kernels.grey_reduced[(_SPLITS, columns)](
            x, kernel, found, weight, bias, slope, sums, windows, channels, height, width, SPLITS=_SPLITS, **blocks
        )
        of_kernel, of_weight, of_bias = (torch.empty_like(t) for t in (kernel, weight, bias))
        kernels.grey_slopes[(columns,)](
            kernel, found, weight, parts, sums, of_kernel, of_weight, of_bias,
            examples * height * width, channels, SPLITS=_SPLITS, BC=blocks["BC"],
        )  # fmt: skip
        return None, of_kernel, of_weight, of_bias, None
