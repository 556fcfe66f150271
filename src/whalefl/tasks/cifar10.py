"""CIFAR-10: small photographs of ten kinds of things, and ResNet18."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.store import load
from whalefl.tasks.layers import Norm
from whalefl.tasks.resnet import ResNet18, resnet18_axes
from whalefl.tasks.task import Augmentation, Examples, Task

CLASSES = 10
# Of the training images' red, green and blue.
MEANS = (0.4914, 0.4822, 0.4465)
SPREADS = (0.2023, 0.1994, 0.2010)
PADDING = 4


def cifar10(data_dir: Path | None = None, norm: Norm = "batch") -> Task:
    """50,000 colour images of 32x32 to train on and 10,000 to test on."""
    data = load("cifar10", data_dir)
    return cifar10_task(data.arrays, data.notes, norm)


def cifar10_task(arrays: Arrays, notes: tuple[str, ...] = (), norm: Norm = "batch") -> Task:
    """The task over any images like CIFAR-10's."""
    return Task(
        name="cifar10",
        axes=resnet18_axes(3, CLASSES),
        build=lambda shape: ResNet18(shape, 3, CLASSES, norm),
        stack=lambda shape, copies: ResNet18(shape, 3, CLASSES, norm, copies=copies),
        train=_examples(arrays, "train"),
        test=_examples(arrays, "test"),
        classes=CLASSES,
        prepare=normalised,
        augment=Augmentation(3, shifted_and_flipped),
        notes=notes,
    )


def _examples(arrays: Arrays, split: str) -> Examples:
    return Examples(torch.tensor(arrays[f"x_{split}"]), torch.tensor(arrays[f"y_{split}"], dtype=torch.int64))


def normalised(pixels: Tensor) -> Tensor:
    """Each colour by its mean and spread."""
    # Numbers rather than tensors, which would have to follow the images from device to device.
    colours = zip(pixels.unbind(-3), MEANS, SPREADS, strict=True)
    return torch.stack([(colour - 255 * mean) / (255 * spread) for colour, mean, spread in colours], dim=-3)


def shifted_and_flipped(images: Tensor, uniforms: Tensor) -> Tensor:
    """A crop of the image's own size out of a black frame 4 pixels wide, and every second one mirrored.

    The uniform numbers choose the row and the column of the crop and whether it is mirrored; 0.5 changes nothing.
    """
    height, width = images.shape[-2:]
    framed = F.pad(images, (PADDING,) * 4)
    top, left = (uniforms[:, :2] * (2 * PADDING + 1)).long().clamp(max=2 * PADDING).unsqueeze(-1).unbind(1)
    rows, columns = (torch.arange(size, device=images.device) for size in (height, width))
    columns = torch.where(uniforms[:, 2:] < 0.5, columns.flip(0), columns)
    picked = framed.gather(2, (top + rows)[:, None, :, None].expand(-1, images.shape[1], -1, framed.shape[3]))
    return picked.gather(3, (left + columns)[:, None, None, :].expand(-1, images.shape[1], height, -1))
