"""The width-scalable CNN: blocks of [conv 3x3, scaler, batch norm, ReLU, max pool 2], a global pool, a classifier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whalefl.subnet.axes import Axes, Part
from whalefl.tasks.layers import Scaler, StaticBatchNorm
from whalefl.tasks.task import Shape


class CNN(nn.Module):
    """`channels` names one axis per block; the last block's pool is a global average."""

    def __init__(self, shape: Shape, inputs: int, axes: Sequence[str], classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for axis in axes:
            block = [
                nn.Conv2d(inputs, shape[axis], 3, padding=1),
                Scaler(shape.ratio),
                StaticBatchNorm(shape[axis]),
            ]
            self.blocks.append(nn.Sequential(*block, nn.ReLU()))
            inputs = shape[axis]
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number:
                x = torch.max_pool2d(x, 2)
            x = block(x)
        return self.classifier(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def cnn_axes(inputs: int, channels: Sequence[int], classes: int) -> tuple[Axes, tuple[str, ...]]:
    """The axes of a CNN with these channels, and their names in order."""
    names = tuple(f"channels{number + 1}" for number in range(len(channels)))
    parameters: dict[str, Sequence[str | int | Part]] = {}
    before: str | int = inputs
    for number, axis in enumerate(names):
        parameters[f"blocks.{number}.0.weight"] = (axis, before, 3, 3)
        for name in ("0.bias", "2.weight", "2.bias"):
            parameters[f"blocks.{number}.{name}"] = (axis,)
        before = axis
    parameters["classifier.weight"] = (classes, before)
    parameters["classifier.bias"] = (classes,)
    labels = {"classifier.weight": 0, "classifier.bias": 0}
    return Axes.of(dict(zip(names, channels, strict=True)), parameters, labels), names
