"""Batch norm, max pool and ReLU as one operation on a GPU, and a whole block on grey images.

Their kernels are in `tasks.norm_kernels` and `tasks.grey_kernels`. Triton, which those are written in, comes with
torch where there is a GPU.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from whalefl.native.norms import Statistics
from whalefl.tasks import grey_kernels, norm_kernels
from whalefl.tasks.layers import Pool

_ADDRESSED = 2**31  # numbers that an operation can tell apart
_SPLITS = 32  # parts that the sums of a grey block are taken in
_MOST_SPLITS = 256  # of the other sums
_TILES = 4  # that a program goes over before there are more parts
_TILE = 2048  # numbers that one program holds of an activation
_SMALL_TILE = 512  # where it holds ten of them
_CHANNELS = 64  # of them at most
_TAPS = grey_kernels.TAPS.value
_PATCHES = 256  # that one program multiplies at a time


def fits(x: Tensor, pool: Pool) -> bool:
    """Whether these images and this pool can be worked on."""
    return x.numel() < _ADDRESSED


def fits_grey(x: Tensor, kernel: Tensor, pool: Pool, groups: int) -> bool:
    """Whether the block as a whole can be one operation: one channel comes in, and needs no gradient."""
    alone = x.shape[1] == groups == 1 and not x.requires_grad
    return alone and len(kernel) * x.numel() < _ADDRESSED and kernel.ndim == 4 and pool == (2, 2)


def fits_tiny(x: Tensor, weight: Tensor, groups: int) -> bool:
    """On a GPU the library's own convolutions are fast with images of any size."""
    return False


def norm_pool_relu(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: Pool, statistics: Statistics | None = None
) -> Tensor:
    """relu(max_pool(batch_norm(x))) for images with their channels last, with the statistics of the batch.

    With `statistics` (mean and variance) it normalises by those, and has no gradient.
    """
    if statistics is None:
        return _NormPoolRelu.apply(x, weight, bias, eps, pool, _ended(weight))  # type: ignore[no-any-return, no-untyped-call]
    return _normed(x.contiguous(memory_format=torch.channels_last), _found(statistics, eps), weight, bias, pool)


def _normed(x: Tensor, found: Tensor, weight: Tensor, bias: Tensor, pool: Pool) -> Tensor:
    """The operation where mean and 1 / deviation are found."""
    (examples, channels, height, width), (ph, pw) = x.shape, pool
    out = _images(x, examples, channels, height // ph, width // pw)
    windows, blocks = examples * (height // ph) * (width // pw), _blocks(channels)
    norm_kernels.normed[_grid(windows, channels, blocks)](
        x, found, weight, bias, out, windows, channels, height, width, PH=ph, PW=pw, **blocks
    )
    return out


def _found(statistics: Statistics, eps: float) -> Tensor:
    """Mean and 1 / deviation."""
    mean, variance = statistics
    return torch.stack([mean, torch.rsqrt(variance + eps)])


def mean_and_variance(x: Tensor) -> Statistics:
    """Of every channel of images with their channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    channels, rows, blocks = x.shape[1], x.numel() // x.shape[1], _blocks(x.shape[1])
    parts = torch.empty(2, _MOST_SPLITS, channels, device=x.device)
    norm_kernels.moments[(_MOST_SPLITS, triton.cdiv(channels, blocks["BC"]))](
        x, parts, parts, parts, rows, channels, 0.0, _MOST_SPLITS, WHOLE=False, BR=blocks["BQ"], BC=blocks["BC"]
    )
    off, squares = parts.sum(dim=1, dtype=torch.float64) / rows
    return (off + x[0, :, 0, 0]).float(), (squares - off**2).clamp(min=0).float()


def try_out(place: str) -> None:
    """Do both operations once on a little image, forwards and back, and raise what keeps them from it; that they come
    out right is for tests, which take much longer to compile."""
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
    return _grey_normed(x.contiguous(), kernel, _found(statistics, eps), weight, bias)


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


def _splits(pixels: int, blocks: dict[str, int]) -> int:
    """In how many parts sums over so many pixels are taken: for each a program, which is to have a few tiles."""
    return max(1, min(_MOST_SPLITS, ceil(pixels / (_TILES * blocks["BQ"]))))


_counters: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _ended(weight: Tensor) -> Tensor:
    """Counters of the programs that have ended, by which the last one knows that it is: of each norm its own, since
    norms of several devices work at the same time. They are 0 between operations."""
    if weight not in _counters:
        _counters[weight] = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
    return _counters[weight]  # type: ignore[no-any-return]


def _grid(pixels: int, channels: int, blocks: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(pixels, blocks["BQ"]), triton.cdiv(channels, blocks["BC"])


def _images(x: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Room for images (examples, channels, height, width) with their channels last."""
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


class _NormPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: Pool, ended: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        channels, rows, blocks = x.shape[1], x.numel() // x.shape[1], _blocks(x.shape[1])
        splits, found = _splits(rows, blocks), torch.empty(2, channels, device=x.device)
        parts = torch.empty(2, splits, channels, device=x.device)
        norm_kernels.moments[(splits, triton.cdiv(channels, blocks["BC"]))](
            x, parts, found, ended, rows, channels, eps, splits, WHOLE=True, BR=blocks["BQ"], BC=blocks["BC"]
        )
        ctx.save_for_backward(x, weight, bias, found, ended)
        ctx.pool = pool
        return _normed(x, found, weight, bias, pool)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, found, ended = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        (examples, channels, height, width), (ph, pw) = x.shape, ctx.pool
        rows, blocks, shape = examples * height * width, _blocks(channels), {"PH": ph, "PW": pw}
        of_x, of_weight, of_bias = (torch.empty_like(t) for t in (x, weight, bias))
        whole = examples * (height // ph) * (width // pw)
        splits = _splits(whole, blocks)
        parts = torch.empty(2, splits, channels, device=x.device)
        norm_kernels.reduced[(splits, triton.cdiv(channels, blocks["BC"]))](
            x, found, weight, bias, slope, parts, of_weight, of_bias, ended,
            whole, channels, height, width, splits, **shape, **blocks,
        )  # fmt: skip
        windows = examples * triton.cdiv(height, ph) * triton.cdiv(width, pw)
        norm_kernels.spread[_grid(windows, channels, blocks)](
            x, found, weight, bias, slope, of_weight, of_bias, of_x,
            windows, rows, channels, height, width, **shape, **blocks,
        )  # fmt: skip
        return of_x, of_weight, of_bias, None, None, None


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
