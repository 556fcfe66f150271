"""Steps of SGD on a processor, see `sgd.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from functools import partial

import torch
from torch import Tensor

from whalefl.native.compiler import operation


class _Weight(ctypes.Structure):
    """`Weight` of sgd.cpp."""

    _fields_ = [(name, c_void_p) for name in ("weight", "momentum", "gradient", "half")] + [("size", c_int64)]


class _Step(ctypes.Structure):
    """`Step` of sgd.cpp."""

    _fields_ = [(name, c_float) for name in ("rate", "momentum", "decay", "clip")]


_ARGUMENTS = (ctypes.Array, c_int64, c_int64, _Step)


class Descent:
    """SGD for `copies` of some weights in float32, which stand one copy after another in each of these tensors.

    `leaves` are what gradients are taken of: the weights themselves, or copies of them in bfloat16, which are renewed
    with them. All three stay where they are in memory.
    """

    def __init__(
        self, weights: Sequence[Tensor], momentum: Sequence[Tensor], leaves: Sequence[Tensor], copies: int
    ) -> None:
        self._held = [*weights, *momentum, *leaves]
        self._leaves, self._copies = leaves, copies
        self._weights = (_Weight * len(weights))(
            *(
                _Weight(w.data_ptr(), m.data_ptr(), None, None if leaf is w else leaf.data_ptr(), w.numel() // copies)
                for w, m, leaf in zip(weights, momentum, leaves, strict=True)
            )
        )

    def step(self, gradients: Sequence[Tensor], rate: float, momentum: float, decay: float, clip: float) -> None:
        """With c = max(1, |gradient| / clip) of each copy: m = momentum m + gradient / c + decay w, w = w - rate m."""
        alike = [_laid_out(gradient, leaf) for gradient, leaf in zip(gradients, self._leaves, strict=True)]
        for weight, gradient in zip(self._weights, alike, strict=True):
            weight.gradient = gradient.data_ptr()
        operation("sgd", _ARGUMENTS)(
            self._weights, len(self._weights), self._copies, _Step(rate, momentum, decay, clip)
        )


def try_out(place: str) -> None:
    """Make a step of three copies, of weights and of ones with a copy in 16 bits, and see that it is the right one: the
    gradient of the second is clipped, that of the third is no number. Whatever is wrong is raised."""
    tensor = partial(torch.tensor, dtype=torch.float32, device=place)  # whatever torch's defaults are
    gradient = tensor([0.3, 0.4, 0.0, 3.0, 0.0, 4.0, 1.0, 1.0, torch.nan])
    for dtype in (torch.float32, torch.bfloat16):
        weight, own = tensor(range(9)), gradient.to(dtype)
        momentum, leaf = torch.ones_like(weight), weight if dtype == torch.float32 else weight.to(dtype)
        clipped = own.float() / tensor([1, 1, 1, 5, 5, 5, *3 * [torch.nan]])
        expected = weight - 0.5 * (0.9 * momentum + clipped + 0.1 * weight)
        Descent([weight], [momentum], [leaf], 3).step([own], rate=0.5, momentum=0.9, decay=0.1, clip=1.0)
        torch.testing.assert_close(weight, expected, equal_nan=True)
        torch.testing.assert_close(leaf, expected.to(dtype), equal_nan=True)


def _laid_out(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient in its leaf's precision, and in the order in which that lies in memory."""
    if gradient.dtype == leaf.dtype and gradient.stride() == leaf.stride():
        return gradient
    return torch.empty_like(leaf).copy_(gradient)
