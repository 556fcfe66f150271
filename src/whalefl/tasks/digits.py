"""Digits: scikit-learn's bundled 8x8 handwritten digits and a small CNN, for a first run with nothing to download."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from whalefl.rng import stream
from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.layers import Norm
from whalefl.tasks.task import Examples, Task

CHANNELS = (48, 96, 192)
TEST_SHARE = 0.2


def digits(norm: Norm = "batch") -> Task:
    """1,797 images of ten classes; a fifth of every class, always the same one, is kept for testing."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8).astype(np.uint8))
    targets = torch.from_numpy(labels.astype(np.int64))
    test = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        chosen = stream(0, "digits test", label).permutation(members)[: round(TEST_SHARE * len(members))]
        test[torch.from_numpy(chosen)] = True
    axes, names = cnn_axes(1, CHANNELS, 10)
    return Task(
        name="digits",
        axes=axes,
        build=lambda shape: CNN(shape, 1, names, 10, kind=norm),
        stack=lambda shape, copies: CNN(shape, 1, names, 10, kind=norm, copies=copies),
        train=Examples(images[~test], targets[~test]),
        test=Examples(images[test], targets[test]),
        classes=10,
        prepare=lambda pixels: (pixels.float() - 4.9) / 6.0,  # mean and spread of the grey values 0 .. 16
    )
