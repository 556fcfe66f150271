"""Tasks without data, for a server that holds none: the model and one blank example."""

from __future__ import annotations

import numpy as np

from whalefl.tasks.cifar10 import cifar10_task
from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.har import har_task
from whalefl.tasks.layers import Norm
from whalefl.tasks.mnist import mnist_task
from whalefl.tasks.task import Task

_TASKS = {"mnist": (mnist_task, (28, 28)), "cifar10": (cifar10_task, (3, 32, 32)), "har": (har_task, (9, 128))}


def blank_task(name: str, norm: Norm) -> Task | None:
    """The task called `name` with nothing in it; None for those whose model depends on their data."""
    if name not in _TASKS:
        return None
    make, shape = _TASKS[name]
    arrays: Arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = np.arange(np.prod(shape), dtype=np.uint8).reshape(1, *shape)
        arrays[f"y_{split}"] = np.zeros(1, dtype=np.uint8)
        arrays[f"subject_{split}"] = np.zeros(1, dtype=np.uint8)
    return make(arrays, (), norm)
