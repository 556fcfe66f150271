"""3x3 convolutions of images of few pixels on a processor, see `tiny.cpp`."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whalefl.native.compiler import operation, wide_vectors

_FORWARD, _BACK = 16, 64  # pixels up to which the library's own kernels are slower
_LANES = 16  # numbers in a vector: `LANES` of numbers.h
_OUTPUTS = 4  # that are held at once: `OUTPUTS` of tiny.cpp


class _Tiny(ctypes.Structure):
    """`Tiny` of tiny.cpp."""

    _fields_ = [(name, c_int64) for name in ("images", "height", "width", "groups", "inputs", "outputs")]


_ARGUMENTS = (c_void_p, c_void_p, _Tiny, c_void_p)


def fits_tiny(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether this convolution can be one of those here, and is faster as one: they keep a single thread busy, with
    vectors as wide as `_LANES`."""
    if x.ndim != 4 or weight.shape[2:] != (3, 3) or x.numel() == 0 or not x.is_cpu:
        return False
    fitting = x.shape[1] == groups * weight.shape[1] and len(weight) % groups == 0
    whole = weight.shape[1] % _LANES == 0 and len(weight) // groups % _OUTPUTS == 0
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    near = x.shape[2] * x.shape[3] <= _BACK
    return fitting and whole and single and near and torch.get_num_threads() == 1 and wide_vectors()


def convolve_tiny(x: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
    """A 3x3 convolution with a rim of zeros, without a bias."""
    return _Convolve.apply(x, weight, groups)  # type: ignore[no-any-return, no-untyped-call]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        if x.shape[2] * x.shape[3] > _FORWARD:
            return torch.conv2d(x, weight, padding=1, groups=groups)
        out = x.new_empty(len(x), *x.shape[2:], len(weight)).permute(0, 3, 1, 2)
        operation("tiny", _ARGUMENTS)(x.data_ptr(), weight.data_ptr(), _sizes(x, weight, groups), out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slope, sizes = slope.contiguous(memory_format=torch.channels_last), _sizes(x, weight, ctx.groups)
        wanted = zip((x, weight), ctx.needs_input_grad, strict=False)
        of_x, of_weight = (torch.empty_like(tensor) if needed else None for tensor, needed in wanted)
        if of_x is not None:
            operation("tiny_of_x", _ARGUMENTS)(slope.data_ptr(), weight.data_ptr(), sizes, of_x.data_ptr())
        if of_weight is not None:
            operation("tiny_of_weight", _ARGUMENTS)(x.data_ptr(), slope.data_ptr(), sizes, of_weight.data_ptr())
        return of_x, of_weight, None


def _sizes(x: Tensor, weight: Tensor, groups: int) -> _Tiny:
    return _Tiny(len(x), *x.shape[2:], groups, weight.shape[1], len(weight) // groups)
