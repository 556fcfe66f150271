"""A block on grey images as one operation on a processor, see `grey.cpp`."""

from __future__ import annotations

from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.native.compiler import operation, wide_vectors
from whalefl.native.norms import Sizes, Statistics, dense, fits, floats, found_of, room_for

_POOL = (2, 2)
_FORWARD = (c_void_p, Sizes, c_int64, *[c_void_p] * 3, c_double, *[c_void_p] * 5)
_POOLED = (c_void_p, Sizes, c_int64, *[c_void_p] * 4)
_BACKWARD = (c_void_p, Sizes, c_int64, *[c_void_p] * 9)


def fits_grey(x: Tensor, kernel: Tensor, pool: tuple[int, int], groups: int) -> bool:
    """Whether the block as a whole can be one operation, and is faster as one: in float32 and with wide vectors, where
    one channel comes in for each group and needs no gradient."""
    alone = kernel.shape[1:] == (1, 3, 3) and x.shape[1] == groups and not x.requires_grad
    whole = x.dtype == kernel.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    near = pool == _POOL and fits(x, pool)
    return alone and whole and near and torch.get_num_threads() == 1 and wide_vectors()


def grey_block(
    x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float, statistics: Statistics | None = None
) -> Tensor:
    """relu(max_pool(batch_norm(convolution of x))) of images with one channel for each group, 3x3 weights and a pool of
    2x2.

    The image itself gets no gradient: it is the first layer's. `statistics` are as in `norm_pool_relu`.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    if statistics is None:
        return _GreyBlock.apply(x, kernel, dense(weight), dense(bias), eps)  # type: ignore[no-any-return, no-untyped-call]
    found, sizes = found_of(statistics, weight, bias, eps), _sizes(x, kernel)
    out, taps, kept = room_for(sizes, x.dtype), _taps(kernel), _one_image(sizes)
    operation("grey_pooled", _POOLED)(
        x.data_ptr(), sizes, x.shape[1], taps.data_ptr(), found.data_ptr(), kept.data_ptr(), out.data_ptr()
    )
    return out


class _GreyBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        channels, taps, ctx.sizes = len(kernel), _taps(kernel), _sizes(x, kernel)
        out = room_for(ctx.sizes, x.dtype)
        top, convolved = torch.empty_like(out), floats(len(x), *x.shape[2:], channels)
        found, room = floats(4, channels), floats(4, channels, dtype=torch.float64)
        operation("grey_forward", _FORWARD)(
            x.data_ptr(), ctx.sizes, x.shape[1], taps.data_ptr(), weight.data_ptr(), bias.data_ptr(), eps,
            room.data_ptr(), found.data_ptr(), convolved.data_ptr(), top.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(x, convolved, found, top)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, convolved, found, top = ctx.saved_tensors
        slope, channels = slope.contiguous(memory_format=torch.channels_last), found.shape[1]
        of_weight, of_bias, room = floats(channels), floats(channels), floats(2, channels)
        of_taps, given = floats(9, channels).zero_(), _one_image(ctx.sizes)
        operation("grey_backward", _BACKWARD)(
            x.data_ptr(), ctx.sizes, x.shape[1], convolved.data_ptr(), found.data_ptr(), top.data_ptr(),
            slope.data_ptr(), room.data_ptr(), given.data_ptr(), of_taps.data_ptr(), of_weight.data_ptr(),
            of_bias.data_ptr(),
        )  # fmt: skip
        of_kernel = of_taps.t().contiguous().view(channels, 3, 3, 1).permute(0, 3, 1, 2)  # as weights lie in memory
        return None, of_kernel, of_weight, of_bias, None


def _taps(kernel: Tensor) -> Tensor:
    """3x3 weights of one channel, tap by tap."""
    return kernel.detach().flatten(1).t().contiguous()


def _sizes(x: Tensor, kernel: Tensor) -> Sizes:
    return Sizes(len(x), *x.shape[2:], len(kernel), *_POOL)


def _one_image(of: Sizes) -> Tensor:
    """Room for one image before the pool."""
    return floats(of.height * of.width * of.channels)
