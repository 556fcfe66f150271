"""Readers for the compact copies: smaller than the official files, and not always equal to them, which the notes say.

cifar10/     train_1.xz .. train_5.xz, test.xz (differences of neighbours, 10,000 images each) and labels.npz
wikitext2/   train.txt.xz, valid.txt.xz, test.txt.xz
uci_har/     uci_har.npz

MNIST has no compact form: its official files are small.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.words import encode

LAYOUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cifar10": ((*(f"cifar10/train_{number}.xz" for number in range(1, 6)), "cifar10/test.xz", "cifar10/labels.npz"),),
    "wikitext2": (tuple(f"wikitext2/{split}.txt.xz" for split in ("train", "valid", "test")),),
    "har": (("uci_har/uci_har.npz",),),
}

NOTES: Mapping[str, tuple[str, ...]] = {
    "cifar10": ("93 of the 60,000 images are not bit-exact (JPEG copies)",),
    "wikitext2": ("the training articles stand in another order than in the official file",),
    "har": ("a few training windows of one person and activity may stand in another order than in the official files",),
}


def read_cifar10(files: Sequence[Path]) -> Arrays:
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # lzma and numpy work outside the interpreter's lock
        *train, test = threads.map(_images, files[:-1])
    labels = _arrays(files[-1])
    return {
        "x_train": np.concatenate(train),
        "y_train": labels["train"],
        "x_test": test,
        "y_test": labels["test"],
        "approx_train": labels["approx_train"],
        "approx_test": labels["approx_test"],
    }


def _images(path: Path) -> NDArray[np.uint8]:
    """One part: three planes, R and B as differences to G, all as differences along rows and columns modulo 256."""
    planes = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(3, -1, 32, 32)
    planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 0, 2, 3))


def read_wikitext2(files: Sequence[Path]) -> Arrays:
    return encode(*(lzma.decompress(file.read_bytes()).decode() for file in files))


def read_har(files: Sequence[Path]) -> Arrays:
    return _arrays(files[0])


def _arrays(path: Path) -> Arrays:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        return dict(content)


READERS: Mapping[str, Callable[[Sequence[Path]], Arrays]] = {
    "cifar10": read_cifar10,
    "wikitext2": read_wikitext2,
    "har": read_har,
}
