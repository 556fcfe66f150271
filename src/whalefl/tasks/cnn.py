"""The width-scalable CNN: blocks of [conv 3, scaler, norm, ReLU, max pool 2], a global pool, a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from whalefl.subnet.axes import Axes, Part
from whalefl.tasks.layers import Norm, Scaler, norm
from whalefl.tasks.task import Shape

Dims = Literal[1, 2]


class CNN(nn.Module):
    """`axes` names one axis per block; the last block's pool is a global average.

    `dims` is 2 for images (examples, channels, height, width) and 1 for signals (examples, channels, steps).
    """

    def __init__(
        self, shape: Shape, inputs: int, axes: Sequence[str], classes: int, dims: Dims = 2, kind: Norm = "batch"
    ) -> None:
        super().__init__()
        convolution = nn.Conv2d if dims == 2 else nn.Conv1d
        self.pool = torch.max_pool2d if dims == 2 else torch.max_pool1d
        self.blocks = nn.ModuleList()
        for axis in axes:
            block = [
                convolution(inputs, shape[axis], 3, padding=1),
                Scaler(shape.ratio),
                norm(kind, shape[axis]),
            ]
            self.blocks.append(nn.Sequential(*block, nn.ReLU()))
            inputs = shape[axis]
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number:
                x = self.pool(x, 2)
            x = block(x)
        return self.classifier(x.mean(dim=tuple(range(2, x.ndim))))  # type: ignore[no-any-return]


def cnn_axes(inputs: int, channels: Sequence[int], classes: int, dims: Dims = 2) -> tuple[Axes, tuple[str, ...]]:
    """The axes of a CNN with these channels, and their names in order."""
    names = tuple(f"channels{number + 1}" for number in range(len(channels)))
    parameters: dict[str, Sequence[str | int | Part]] = {}
    before: str | int = inputs
    for number, axis in enumerate(names):
        parameters[f"blocks.{number}.0.weight"] = (axis, before, *[3] * dims)
        for name in ("0.bias", "2.weight", "2.bias"):
            parameters[f"blocks.{number}.{name}"] = (axis,)
        before = axis
    parameters["classifier.weight"] = (classes, before)
    parameters["classifier.bias"] = (classes,)
    labels = {"classifier.weight": 0, "classifier.bias": 0}
    return Axes.of(dict(zip(names, channels, strict=True)), parameters, labels), names
