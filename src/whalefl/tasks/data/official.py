"""Readers for the files as the publishers give them. Each takes the files of a layout and returns the arrays."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.pickles import load_batch
from whalefl.tasks.data.words import encode

SPLITS = ("train", "valid", "test")
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
HAR_ZIP = "UCI HAR Dataset.zip"
SIGNALS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")

LAYOUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "mnist": (
        (
            "train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte.gz",
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
        ),
    ),
    "cifar10": (("cifar-10-python.tar.gz",),),
    "wikitext2": (
        ("wikitext-2-v1.zip",),
        tuple(f"wikitext-2/wiki.{split}.tokens" for split in SPLITS),
        tuple(f"wiki.{split}.tokens" for split in SPLITS),
    ),
    "har": ((HAR_ZIP,), ("human+activity+recognition+using+smartphones.zip",)),
}


def read_mnist(files: Sequence[Path]) -> Arrays:
    return dict(zip(("x_train", "y_train", "x_test", "y_test"), map(read_idx, files), strict=True))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, the type 8, the number of dimensions, each size, the content."""
    content = gzip.decompress(path.read_bytes())
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name} is not an IDX file of bytes")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()


def read_cifar10(files: Sequence[Path]) -> Arrays:
    batches = {}
    with tarfile.open(files[0], "r|gz") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            file = archive.extractfile(member) if name in BATCHES else None
            if file is not None:
                batches[name] = load_batch(file.read())
    images, labels = zip(*(batches[name] for name in BATCHES), strict=True)
    return {
        "x_train": np.concatenate(images[:-1]).reshape(-1, 3, 32, 32),
        "y_train": np.concatenate(labels[:-1]),
        "x_test": images[-1].reshape(-1, 3, 32, 32),
        "y_test": labels[-1],
    }


def read_wikitext2(files: Sequence[Path]) -> Arrays:
    if len(files) == 1:
        with zipfile.ZipFile(files[0]) as archive:
            contents = [archive.read(f"wikitext-2/wiki.{split}.tokens") for split in SPLITS]
    else:
        contents = [file.read_bytes() for file in files]
    return encode(*(content.decode() for content in contents))


def read_har(files: Sequence[Path]) -> Arrays:
    """The raw windows, not the 561 derived features. The repository now wraps the archive into another one."""
    with zipfile.ZipFile(files[0]) as archive:
        if HAR_ZIP not in archive.namelist():
            return _har_splits(archive)
        with zipfile.ZipFile(io.BytesIO(archive.read(HAR_ZIP))) as inner:
            return _har_splits(inner)


def _har_splits(archive: zipfile.ZipFile) -> Arrays:
    arrays: Arrays = {}
    for split in ("train", "test"):
        folder = f"UCI HAR Dataset/{split}"
        signals = [
            _numbers(archive.open(f"{folder}/Inertial Signals/{signal}_{split}.txt"), np.float32) for signal in SIGNALS
        ]
        arrays[f"x_{split}"] = np.stack(signals, axis=1)
        arrays[f"y_{split}"] = _numbers(archive.open(f"{folder}/y_{split}.txt"), np.uint8)[:, 0] - np.uint8(1)
        arrays[f"subject_{split}"] = _numbers(archive.open(f"{folder}/subject_{split}.txt"), np.uint8)[:, 0].copy()
    return arrays


def _numbers(file: IO[bytes], dtype: type[np.generic]) -> NDArray[Any]:
    with file:
        return np.loadtxt(file, dtype=dtype, ndmin=2)


READERS: Mapping[str, Callable[[Sequence[Path]], Arrays]] = {
    "mnist": read_mnist,
    "cifar10": read_cifar10,
    "wikitext2": read_wikitext2,
    "har": read_har,
}
