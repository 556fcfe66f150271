"""MNIST: handwritten digits, and the CNN whose training times on the testbed's devices were measured."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.store import load
from whalefl.tasks.layers import Norm
from whalefl.tasks.task import Examples, Task

CHANNELS = (64, 128, 256, 512)
CLASSES = 10


def mnist(data_dir: Path | None = None, norm: Norm = "batch") -> Task:
    """60,000 grey images of 28x28 to train on and 10,000 to test on."""
    data = load("mnist", data_dir)
    return mnist_task(data.arrays, data.notes, norm)


def mnist_task(arrays: Arrays, notes: tuple[str, ...] = (), norm: Norm = "batch") -> Task:
    """The task over any images like MNIST's."""
    axes, names = cnn_axes(1, CHANNELS, CLASSES)
    return Task(
        name="mnist",
        axes=axes,
        build=lambda shape: CNN(shape, 1, names, CLASSES, kind=norm),
        stack=lambda shape, copies: CNN(shape, 1, names, CLASSES, kind=norm, copies=copies),
        train=_examples(arrays, "train"),
        test=_examples(arrays, "test"),
        classes=CLASSES,
        prepare=normalised,
        notes=notes,
    )


def _examples(arrays: Arrays, split: str) -> Examples:
    images = torch.tensor(arrays[f"x_{split}"]).unsqueeze(1)
    return Examples(images, torch.tensor(arrays[f"y_{split}"], dtype=torch.int64))


def normalised(pixels: Tensor) -> Tensor:
    """By the mean and spread of the training images' grey values."""
    return (pixels - 255 * 0.1307) / (255 * 0.3081)
