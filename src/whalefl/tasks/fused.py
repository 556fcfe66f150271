"""Batch norm, max pool and ReLU as one operation on a GPU, and a whole block on grey images.

Their kernels are in `tasks.norm_kernels` and `tasks.grey_kernels`. Triton, which those are written in, comes with
torch where there is a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.tasks import grey_kernels, norm_kernels
from whalefl.tasks.layers import Pool, Statistics

_ADDRESSED = 2**31  # numbers that an operation can tell apart
_SPLITS = 32  # parts that a sum over all pixels of a mini-batch is taken in
_LARGE_SPLITS = 64  # of a large one
_LARGE = 2**21  # numbers
_SCORED_SPLITS = 256  # of thousands of images
_TILE = 2048  # numbers that one program holds of an activation
_SMALL_TILE = 512  # where it holds ten of them
_CHANNELS = 64  # of them at most
_TAPS = grey_kernels.TAPS.value
_PATCHES = 256  # that one program multiplies at a time


def fits(x: Tensor, pool: Pool) -> bool:
    """Whether these images and this pool can be worked on."""
    return x.numel() < _ADDRESSED


def fits_grey(x: Tensor, kernel: Tensor, pool: Pool) -> bool:
    """Whether the block as a whole can be one operation: one channel comes in, and needs no gradient."""
    alone = x.shape[1] == 1 and not x.requires_grad
    return alone and len(kernel) * x.numel() < _ADDRESSED and kernel.ndim == 4 and pool == (2, 2)


def norm_pool_relu(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: Pool, statistics: Statistics | None = None
) -> Tensor:
    """relu(max_pool(batch_norm(x))) for images with their channels last, with the statistics of the batch.

    With `statistics` (mean and variance) it normalises by those, and has no gradient.
    """
    if statistics is None:
        return _NormPoolRelu.apply(x, weight, bias, eps, pool)  # type: ignore[no-any-return, no-untyped-call]
    x = x.contiguous(memory_format=torch.channels_last)
    (examples, channels, height, width), (ph, pw), (mean, variance) = x.shape, pool, statistics
    scale = weight * torch.rsqrt(variance + eps)
    shift = bias - mean * scale
    out = _images(x, examples, channels, height // ph, width // pw)
    windows, blocks = examples * (height // ph) * (width // pw), _blocks(channels)
    grid = _grid(windows, channels, blocks)
    norm_kernels.scaled[grid](x, scale, shift, out, windows, channels, height, width, PH=ph, PW=pw, **blocks)
    return out


def mean_and_variance(x: Tensor) -> Statistics:
    """Of every channel of images with their channels last."""
    parts, rows = _moments(x.contiguous(memory_format=torch.channels_last), _SCORED_SPLITS)
    off, squares = parts.sum(dim=1, dtype=torch.float64) / rows
    return (off + x[0, :, 0, 0]).float(), (squares - off**2).clamp(min=0).float()


def try_out(place: str) -> None:
    """Do both operations once on a little image, forwards and back; whatever is wrong is raised."""
    x, weight, bias = torch.rand(2, 1, 4, 4, device=place), torch.ones(4, device=place), torch.zeros(4, device=place)
    kernel = torch.ones(4, 1, 3, 3, device=place, requires_grad=True)
    pooled = norm_pool_relu(grey_block(x, kernel, weight, bias, 1e-5), weight, bias, 1e-5, (1, 1))
    torch.autograd.grad(pooled.sum(), kernel)


def grey_block(
    x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float, statistics: Statistics | None = None
) -> Tensor:
    """relu(max_pool(batch_norm(convolution of x))) of images with one channel, 3x3 weights and a pool of 2x2.

    The image itself gets no gradient: it is the first layer's. `statistics` are as in `norm_pool_relu`.
    """
    if statistics is None:
        return _GreyBlock.apply(x, kernel, weight, bias, eps)  # type: ignore[no-any-return, no-untyped-call]
    mean, variance = statistics
    found = torch.stack([mean, torch.rsqrt(variance + eps)])
    return _grey_normed(x.contiguous(), kernel, found, weight, bias)


def _grey_normed(x: Tensor, kernel: Tensor, found: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A grey block whose mean and 1 / deviation are found."""
    (examples, _, height, width), channels = x.shape, len(kernel)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    out = _images(x, examples, channels, height // 2, width // 2, dtype=dtype)
    windows, blocks = examples * (height // 2) * (width // 2), _blocks(channels)
    grey_kernels.normed[_grid(windows, channels, blocks)](
        x, kernel, found, weight, bias, out, windows, channels, height, width, **blocks
    )
    return out


def _blocks(channels: int, tile: int = _TILE, most: int = _CHANNELS) -> dict[str, int]:
    """How many channels a program takes, and how many pixels of each."""
    width = min(most, triton.next_power_of_2(channels))
    return {"BC": width, "BQ": tile // width}


def _moments(x: Tensor, splits: int) -> tuple[Tensor, int]:
    """Sums and sums of squares of all channels, in parts (see `norm_kernels.moments`), and over how many pixels."""
    channels, rows = x.shape[1], x.numel() // x.shape[1]
    parts, blocks = torch.empty(2, splits, channels, device=x.device), _blocks(channels)
    grid = (splits, triton.cdiv(channels, blocks["BC"]))
    norm_kernels.moments[grid](x, parts, rows, channels, SPLITS=splits, BR=blocks["BQ"], BC=blocks["BC"])
    return parts, rows


def _grid(pixels: int, channels: int, blocks: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(pixels, blocks["BQ"]), triton.cdiv(channels, blocks["BC"])


def _images(x: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Room for images (examples, channels, height, width) with their channels last."""
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def _splits(x: Tensor) -> int:
    """In how many parts sums over a mini-batch's activation are taken: few programs are too slow for a large one."""
    return _LARGE_SPLITS if x.numel() > _LARGE else _SPLITS


class _NormPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: Pool) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        (examples, channels, height, width), (ph, pw) = x.shape, pool
        splits, blocks = _splits(x), _blocks(channels)
        parts, rows = _moments(x, splits)
        out = _images(x, examples, channels, height // ph, width // pw)
        windows = examples * (height // ph) * (width // pw)
        norm_kernels.normed[_grid(windows, channels, blocks)](
            x, parts, weight, bias, out, windows, rows, channels, height, width, eps,
            SPLITS=splits, PH=ph, PW=pw, **blocks,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, parts)
        ctx.eps, ctx.pool = eps, pool
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, parts = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        (examples, channels, height, width), (ph, pw) = x.shape, ctx.pool
        rows, blocks = examples * height * width, _blocks(channels)
        sums, of_x = torch.empty_like(parts), torch.empty_like(x)
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(bias)
        shared = {"SPLITS": parts.shape[1], "PH": ph, "PW": pw, **blocks}
        whole = examples * (height // ph) * (width // pw)
        norm_kernels.reduced[(parts.shape[1], triton.cdiv(channels, blocks["BC"]))](
            x, parts, weight, bias, slope, sums, whole, rows, channels, height, width, ctx.eps, **shared
        )
        windows = examples * triton.cdiv(height, ph) * triton.cdiv(width, pw)
        norm_kernels.spread[_grid(windows, channels, blocks)](
            x, parts, weight, bias, slope, sums, of_x, of_weight, of_bias,
            windows, rows, channels, height, width, ctx.eps, **shared,
        )  # fmt: skip
        return of_x, of_weight, of_bias, None, None


def _multiplied(channels: int) -> int:
    """How many channels a program takes that multiplies matrices, which are at least 16 wide."""
    return max(16, _blocks(channels)["BC"])


class _GreyBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        (examples, _, height, width), channels = x.shape, len(kernel)
        pixels, taken = examples * height * width, _multiplied(channels)
        parts = torch.empty(_SPLITS, _TAPS, _TAPS, device=x.device)
        found = torch.empty(2, channels, device=x.device)
        grey_kernels.patch_products[(_SPLITS,)](x, parts, pixels, height, width, SPLITS=_SPLITS, BR=_PATCHES)
        grey_kernels.statistics[(triton.cdiv(channels, taken),)](
            kernel, parts, found, pixels, channels, eps, SPLITS=_SPLITS, BC=taken
        )
        ctx.save_for_backward(x, kernel, weight, bias, parts, found)
        return _grey_normed(x, kernel, found, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, weight, bias, parts, found = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        (examples, _, height, width), channels = x.shape, len(kernel)
        blocks, taken = _blocks(channels, _SMALL_TILE, _CHANNELS // 2), _multiplied(channels)
        sums = torch.empty(_SPLITS, _TAPS, channels, device=x.device)
        windows = examples * (height // 2) * (width // 2)
        grey_kernels.reduced[(_SPLITS, triton.cdiv(channels, blocks["BC"]))](
            x, kernel, found, weight, bias, slope, sums, windows, channels, height, width, SPLITS=_SPLITS, **blocks
        )
        of_kernel, of_weight, of_bias = (torch.empty_like(t) for t in (kernel, weight, bias))
        grey_kernels.slopes[(triton.cdiv(channels, taken),)](
            kernel, found, weight, parts, sums, of_kernel, of_weight, of_bias,
            examples * height * width, channels, SPLITS=_SPLITS, BC=taken,
        )  # fmt: skip
        return None, of_kernel, of_weight, of_bias, None
