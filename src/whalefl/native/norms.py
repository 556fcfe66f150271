"""Batch norm, max pool and ReLU as one operation on a processor, see `norms.cpp`."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.native.compiler import operation

Statistics = tuple[Tensor, Tensor]
"""Mean and variance of every channel of a batch."""

_NAMES = {torch.float32: "float", torch.bfloat16: "half"}
_WINDOW = 16  # pixels at most: `MOST` of norms.h


class Sizes(ctypes.Structure):
    """`Sizes` of norms.h."""

    _fields_ = [(name, c_int64) for name in ("images", "height", "width", "channels", "pool_height", "pool_width")]


_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "moments": (c_void_p, Sizes, c_void_p),
    "pooled": (c_void_p, Sizes, *[c_void_p] * 2),
    "forward": (c_void_p, Sizes, *[c_void_p] * 2, c_double, *[c_void_p] * 4),
    "backward": (c_void_p, Sizes, *[c_void_p] * 7),
}


def _operation(name: str, dtype: torch.dtype) -> Any:
    return operation(f"{name}_{_NAMES[dtype]}", _ARGUMENTS[name])


def fits(x: Tensor, pool: tuple[int, int]) -> bool:
    """Whether these images and this pool can be worked on, by a single thread, which does as much as two of torch's."""
    if x.ndim != 4 or not x.is_cpu or x.dtype not in _NAMES:
        return False
    whole = min(x.shape[0], x.shape[1], x.shape[2] // pool[0], x.shape[3] // pool[1]) > 0
    return whole and pool[0] * pool[1] <= _WINDOW


def norm_pool_relu(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: tuple[int, int], statistics: Statistics | None = None
) -> Tensor:
    """relu(max_pool(batch_norm(x))) for images with their channels last, with the statistics of the batch.

    With `statistics` it normalises by those, and has no gradient.
    """
    if statistics is None:
        return _NormPoolRelu.apply(x, dense(weight), dense(bias), eps, pool)  # type: ignore[no-any-return, no-untyped-call]
    x = x.contiguous(memory_format=torch.channels_last)
    found, sizes = found_of(statistics, weight, bias, eps), _sizes(x, pool)
    out = room_for(sizes, x.dtype)
    _operation("pooled", x.dtype)(x.data_ptr(), sizes, found.data_ptr(), out.data_ptr())
    return out


def mean_and_variance(x: Tensor) -> Statistics:
    """Of every channel of images with their channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    room = floats(4, x.shape[1], dtype=torch.float64)
    _operation("moments", x.dtype)(x.data_ptr(), _sizes(x, (1, 1)), room.data_ptr())
    return room[0].float(), room[1].float()


def found_of(statistics: Statistics, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """What `Found` of norms.h holds, where mean and variance are known."""
    mean, variance = (found.float() for found in statistics)
    inverse = torch.rsqrt(variance + eps)
    scale = weight.detach().float() * inverse
    return torch.stack([mean, inverse, scale, bias.detach().float() - mean * scale])


class _NormPoolRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: tuple[int, int]) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.sizes = _sizes(x, pool)
        out = room_for(ctx.sizes, x.dtype)
        top = None if pool == (1, 1) else torch.empty_like(out)
        found, room = floats(4, x.shape[1]), floats(4, x.shape[1], dtype=torch.float64)
        _operation("forward", x.dtype)(
            x.data_ptr(), ctx.sizes, weight.data_ptr(), bias.data_ptr(), eps,
            room.data_ptr(), found.data_ptr(), None if top is None else top.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(x, found, top)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, found, top = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        of_x, channels = torch.empty_like(x), x.shape[1]
        of_weight, of_bias, room = floats(channels), floats(channels), floats(2, channels)
        _operation("backward", x.dtype)(
            x.data_ptr(), ctx.sizes, found.data_ptr(), None if top is None else top.data_ptr(), slope.data_ptr(),
            room.data_ptr(), of_x.data_ptr(), of_weight.data_ptr(), of_bias.data_ptr(),
        )  # fmt: skip
        return of_x, of_weight, of_bias, None, None


def _sizes(x: Tensor, pool: tuple[int, int]) -> Sizes:
    examples, channels, height, width = x.shape
    return Sizes(examples, height, width, channels, *pool)


def room_for(of: Sizes, dtype: torch.dtype) -> Tensor:
    """Room for images after a pool, their channels last."""
    shape = (of.images, of.channels, of.height // of.pool_height, of.width // of.pool_width)
    return torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Room for numbers, whatever torch's defaults are."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def dense(weight: Tensor) -> Tensor:
    """The weight as kernels read it."""
    return weight.float().contiguous()
