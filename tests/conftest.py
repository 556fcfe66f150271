"""Shared by all tests: one torch thread, and a task small enough to train in a blink."""

from __future__ import annotations

import os
from pathlib import Path

# Triton asks when it is first imported, which torch may do.
if not any(Path(f"/dev/{gpu}").exists() for gpu in ("nvidiactl", "dxg", "kfd")):
    os.environ["TRITON_INTERPRET"] = "1"

# ruff: noqa: E402
import numpy as np
import pytest
import torch
from hypothesis import settings

from whalefl.federation.simulation import use_one_thread
from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.task import Examples, Task

use_one_thread()
settings.register_profile("busy machines", deadline=None)
settings.load_profile("busy machines")


def made_up_task(channels: tuple[int, ...] = (8, 16), classes: int = 4, examples: int = 160) -> Task:
    """Noisy pictures of four corners: learnable in a few rounds."""
    rng = np.random.default_rng(0)
    axes, names = cnn_axes(1, channels, classes)

    def draw(count: int) -> Examples:
        labels = np.arange(count) % classes
        images = rng.normal(0, 0.5, (count, 1, 6, 6))
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(label, 2)
            image[0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] += 2
        return Examples(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))

    return Task(
        name="corners",
        axes=axes,
        build=lambda shape: CNN(shape, 1, names, classes),
        stack=lambda shape, copies: CNN(shape, 1, names, classes, copies=copies),
        train=draw(examples),
        test=draw(80),
        classes=classes,
        prepare=lambda x: x,
    )


@pytest.fixture(scope="session")
def corners() -> Task:
    return made_up_task()
