"""Human activity recognition: what a phone at the waist feels while a person walks, sits or lies; and a 1-d CNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.store import load
from whalefl.tasks.layers import Norm
from whalefl.tasks.task import Examples, Task

CHANNELS = (64, 128, 256, 512)
SIGNALS = 9
CLASSES = 6


def har(data_dir: Path | None = None, norm: Norm = "batch") -> Task:
    """7,352 windows of 21 people to train on, and 2,947 of 9 others to test on."""
    data = load("har", data_dir)
    return har_task(data.arrays, data.notes, norm)


def har_task(arrays: Arrays, notes: tuple[str, ...] = (), norm: Norm = "batch") -> Task:
    """The task over any windows (examples, 9 signals, steps); each signal is normalised over the training windows."""
    axes, names = cnn_axes(SIGNALS, CHANNELS, CLASSES, dims=1)
    mean = arrays["x_train"].mean(axis=(0, 2), keepdims=True, dtype=np.float64)
    spread = arrays["x_train"].std(axis=(0, 2), keepdims=True, dtype=np.float64)

    def examples(split: str) -> Examples:
        windows = torch.tensor((arrays[f"x_{split}"] - mean) / spread, dtype=torch.float32)
        return Examples(windows, torch.tensor(arrays[f"y_{split}"], dtype=torch.int64))

    return Task(
        name="har",
        axes=axes,
        build=lambda shape: CNN(shape, SIGNALS, names, CLASSES, dims=1, kind=norm),
        stack=lambda shape, copies: CNN(shape, SIGNALS, names, CLASSES, dims=1, kind=norm, copies=copies),
        train=examples("train"),
        test=examples("test"),
        classes=CLASSES,
        prepare=lambda windows: windows,
        groups=arrays["subject_train"].astype(np.int64),
        notes=notes,
    )
