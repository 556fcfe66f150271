"""The width-scalable CNN: blocks of [conv 3, scaler, norm, ReLU, max pool 2], a global pool, a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whalefl.subnet.axes import Axes, Part
from whalefl.tasks.layers import (
    Classifier,
    Fusable,
    Norm,
    Pool,
    StaticBatchNorm,
    norm,
    norm_pool_relu,
    side_by_side,
)
from whalefl.tasks.products import convolve_grey, convolve_tiny
from whalefl.tasks.task import Shape

_TINY = 16  # pixels

Dims = Literal[1, 2]


class Block(Fusable, nn.Module):
    """A convolution, its scaler and norm, pool and ReLU."""

    def __init__(
        self, inputs: int, outputs: int, ratio: float, pool: Pool, dims: Dims, kind: Norm, copies: int
    ) -> None:
        super().__init__()
        self.conv = (nn.Conv2d if dims == 2 else nn.Conv1d)(copies * inputs, copies * outputs, 3, 1, 1, groups=copies)
        self.norm = norm(kind, outputs, ratio, copies)
        # A batch norm takes away whatever a bias adds, so it is neither added nor trained.
        self.biased = kind != "batch"
        self.conv.get_parameter("bias").requires_grad_(self.biased)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        norm, fused = self.norm, self.fused
        kernel = self.conv.weight
        plain = type(norm) is StaticBatchNorm and norm.observer is None and norm.can_be_fused()
        if fused is not None and plain and fused.fits_grey(x, kernel, self.pool, self.conv.groups):
            return fused.grey_block(x, kernel, norm.weight, norm.bias, norm.eps, norm.statistics)  # type: ignore[no-any-return]
        return norm_pool_relu(norm, self._convolved(x, fused), self.pool, fused)

    def _convolved(self, x: Tensor, fused: ModuleType | None) -> Tensor:
        weight, groups = self.conv.weight, self.conv.groups
        if weight.ndim == 3:
            weight = weight.unsqueeze(2)
        if fused is not None and not self.biased and fused.fits_tiny(x, weight, groups):
            return fused.convolve_tiny(x, weight, groups)  # type: ignore[no-any-return]
        if self.biased or groups > 1 or weight.shape[2] == 1:
            bias = self.conv.bias if self.biased else None
            return F.conv2d(x, weight, bias, padding=(weight.shape[2] // 2, 1), groups=groups)
        if x.is_cuda and x.shape[1] == 1:
            return convolve_grey(x, weight)
        if x.is_cpu and x.shape[2] * x.shape[3] <= _TINY:
            if torch.is_autocast_enabled("cpu"):  # which knows torch's own convolutions only
                narrow = torch.get_autocast_dtype("cpu")
                x, weight = x.to(narrow), weight.to(narrow)
            return convolve_tiny(x, weight)
        return F.conv2d(x, weight, padding=1)


class CNN(nn.Module):
    """`axes` names one axis per block; the last block's pool is a global average.

    `dims` is 2 for images (examples, channels, height, width) and 1 for signals (examples, channels, steps), which
    are images of one row inside: with their channels last these are far faster.
    `copies` models stand side by side, each fed an equal part of the examples.
    """

    def __init__(
        self,
        shape: Shape,
        inputs: int,
        axes: Sequence[str],
        classes: int,
        dims: Dims = 2,
        kind: Norm = "batch",
        copies: int = 1,
    ) -> None:
        super().__init__()
        sizes = [inputs, *(shape[axis] for axis in axes)]
        self.copies = copies
        halve: Pool = (2, 2) if dims == 2 else (1, 2)
        pools: list[Pool] = [*[halve] * (len(axes) - 1), (1, 1)]
        self.blocks = nn.Sequential(
            *(
                Block(*pair, shape.ratio, pool, dims, kind, copies)
                for pair, pool in zip(pairwise(sizes), pools, strict=True)
            )
        )
        self.classifier = Classifier(sizes[-1], classes, copies)

    def forward(self, x: Tensor) -> Tensor:
        x = side_by_side(x, self.copies)
        if x.ndim == 3:
            x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        return self.classifier(_averaged(self.blocks(x)))  # type: ignore[no-any-return]


def _averaged(x: Tensor) -> Tensor:
    """The mean over all pixels of each channel."""
    if x.is_cpu:  # over rows with channels last, since the gradient is then laid out as the image is
        return x.permute(0, 2, 3, 1).flatten(1, 2).mean(dim=1)
    return x.mean(dim=(2, 3))


def cnn_axes(inputs: int, channels: Sequence[int], classes: int, dims: Dims = 2) -> tuple[Axes, tuple[str, ...]]:
    """The axes of a CNN with these channels, and their names in order."""
    names = tuple(f"channels{number + 1}" for number in range(len(channels)))
    parameters: dict[str, Sequence[str | int | Part]] = {}
    before: str | int = inputs
    for number, axis in enumerate(names):
        parameters[f"blocks.{number}.conv.weight"] = (axis, before, *[3] * dims)
        for name in ("conv.bias", "norm.weight", "norm.bias"):
            parameters[f"blocks.{number}.{name}"] = (axis,)
        before = axis
    parameters["classifier.weight"] = (classes, before)
    parameters["classifier.bias"] = (classes,)
    labels = {"classifier.weight": 0, "classifier.bias": 0}
    return Axes.of(dict(zip(names, channels, strict=True)), parameters, labels), names
