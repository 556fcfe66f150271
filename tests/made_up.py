"""Small generated data in the form of the paper's data sets."""

from __future__ import annotations

from functools import cache

import numpy as np

from whalefl.tasks.cifar10 import cifar10_task
from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.har import har_task
from whalefl.tasks.layers import Norm
from whalefl.tasks.mnist import mnist_task
from whalefl.tasks.task import Task
from whalefl.tasks.wikitext2 import LENGTH, wikitext2_task

WORDS = 50


def made_up_arrays(name: str, count: int = 24) -> Arrays:
    """A few examples of noise in the form of a data set."""
    rng = np.random.default_rng(0)
    if name == "wikitext2":
        words = "\n".join(f"word{number}" for number in range(WORDS)).encode()
        return {
            "tokens_train": rng.integers(0, WORDS, LENGTH * count + 5).astype(np.int32),
            "tokens_test": rng.integers(0, WORDS, LENGTH * count + 63).astype(np.int32),
            "vocab": np.frombuffer(words, np.uint8),
            "articles_train": np.array([2, 130, 700]),
        }
    shape, classes = {"mnist": ((28, 28), 10), "cifar10": ((3, 32, 32), 10), "har": ((9, 128), 6)}[name]
    arrays: Arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
        arrays[f"y_{split}"] = (np.arange(count) % classes).astype(np.uint8)
        if name == "har":
            arrays[f"x_{split}"] = rng.normal(3, 2, (count, *shape)).astype(np.float32)
            arrays[f"subject_{split}"] = (1 + np.arange(count) // 8).astype(np.uint8)
    return arrays


@cache
def made_up(name: str, norm: Norm = "batch") -> Task:
    arrays = made_up_arrays(name)
    if name == "wikitext2":
        return wikitext2_task(arrays, ("a note",))
    make = {"mnist": mnist_task, "cifar10": cifar10_task, "har": har_task}[name]
    return make(arrays, ("a note",), norm)
