"""The four data sets of the paper: which arrays each one holds, which files its publisher gives, what must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import WhaleflError, require, require_one_of

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory. The notes say where it differs from what the publisher gives; mostly there are none."""

    name: str
    arrays: Arrays
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expected:
    """One array: its dtype, its shape (None for any length) and, for classes and people, how often each occurs."""

    dtype: str
    shape: tuple[int | None, ...]
    counts: tuple[int, ...] = ()
    optional: bool = False

    def check(self, key: str, array: NDArray[Any]) -> None:
        fits = len(array.shape) == len(self.shape) and all(
            wanted in (None, size) for size, wanted in zip(array.shape, self.shape, strict=True)
        )
        wanted = f"{self.dtype} {self.shape}".replace("None", "any")
        require(fits and array.dtype == self.dtype, key, f"{array.dtype} {array.shape}", wanted)
        if self.counts:
            counts = tuple(np.bincount(array).tolist())
            if counts != self.counts:
                wanted = f"{list(self.counts)} times"
                raise WhaleflError(f"{key} holds the values 0, 1, ... {list(counts)} times; it must hold them {wanted}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WhaleflError(f"{key} holds a value that is not a finite number; all of them must be")


@dataclass(frozen=True)
class OfficialFile:
    """A file as its publisher gives it, with the md5 where one is published."""

    name: str
    url: str
    md5: str | None = None


@dataclass(frozen=True)
class Description:
    """What is known of a data set before it is read. `words` is the size of the vocabulary of a text, 0 for no text."""

    name: str
    files: tuple[OfficialFile, ...]
    arrays: Mapping[str, Expected]
    licence: str
    words: int = 0

    def check(self, arrays: Arrays) -> None:
        """Raise unless these are the arrays, with the counts, shapes, dtypes and classes, of this data set."""
        needed = {key for key, expected in self.arrays.items() if not expected.optional}
        if not needed <= arrays.keys() <= self.arrays.keys():
            raise WhaleflError(
                f"{self.name} holds the arrays {', '.join(arrays)}; they must be {', '.join(self.arrays)}"
            )
        for key, array in arrays.items():
            self.arrays[key].check(f"{key} of {self.name}", array)
        if self.words:
            self._check_text(arrays)

    def _check_text(self, arrays: Arrays) -> None:
        words = len(set(arrays["vocab"].tobytes().split(b"\n")))
        require(words == self.words, f"the number of words in {self.name}", words, str(self.words))
        for key, array in arrays.items():
            if key.startswith("tokens_") and array.size:
                low, high = int(array.min()), int(array.max())
                require(low >= 0 and high < words, f"{key} of {self.name}", (low, high), f"within 0 and {words - 1}")
        starts, end = arrays["articles_train"], len(arrays["tokens_train"])
        ok = bool((np.diff(starts, prepend=-1) > 0).all() and (starts < end).all())
        require(ok, f"articles_train of {self.name}", starts[:3].tolist(), f"growing offsets below {end}")


MNIST = Description(
    name="mnist",
    files=tuple(
        OfficialFile(f"{part}-ubyte.gz", f"https://ossci-datasets.s3.amazonaws.com/mnist/{part}-ubyte.gz", md5)
        for part, md5 in (
            ("train-images-idx3", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1", "ec29112dd5afa0611ce80d1b7f02629c"),
        )
    ),
    arrays={
        "x_train": Expected("uint8", (60000, 28, 28)),
        "y_train": Expected("uint8", (60000,), (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)),
        "x_test": Expected("uint8", (10000, 28, 28)),
        "y_test": Expected("uint8", (10000,), (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)),
    },
    licence="the publisher states none; CC BY-SA 3.0 is commonly given",
)

CIFAR10 = Description(
    name="cifar10",
    files=(
        OfficialFile(
            "cifar-10-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
        ),
    ),
    arrays={
        "x_train": Expected("uint8", (50000, 3, 32, 32)),
        "y_train": Expected("uint8", (50000,), (5000,) * 10),
        "x_test": Expected("uint8", (10000, 3, 32, 32)),
        "y_test": Expected("uint8", (10000,), (1000,) * 10),
        "approx_train": Expected("int32", (None,), optional=True),
        "approx_test": Expected("int32", (None,), optional=True),
    },
    licence="the publisher states none and asks to cite Krizhevsky 2009",
)

WIKITEXT2 = Description(
    name="wikitext2",
    files=(
        OfficialFile("wikitext-2-v1.zip", "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"),
    ),
    arrays={
        "tokens_train": Expected("int32", (2088628,)),
        "tokens_valid": Expected("int32", (217646,)),
        "tokens_test": Expected("int32", (245569,)),
        "vocab": Expected("uint8", (None,)),
        "articles_train": Expected("int64", (600,)),
    },
    licence="CC BY-SA 3.0 and GFDL (text of Wikipedia)",
    words=33278,
)

# fmt: off
HAR_WINDOWS_OF_TRAIN = (0, 347, 0, 341, 0, 302, 325, 308, 281, 0, 0, 316, 0, 0, 323, 328,
                        366, 368, 0, 360, 0, 408, 321, 372, 0, 409, 392, 376, 382, 344, 383)
HAR_WINDOWS_OF_TEST = (0, 0, 302, 0, 317, 0, 0, 0, 0, 288, 294, 0, 320, 327, 0, 0, 0, 0, 364, 0, 354, 0, 0, 0, 381)
# fmt: on

HAR = Description(
    name="har",
    files=(
        OfficialFile(
            "UCI HAR Dataset.zip",
            "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        ),
    ),
    arrays={
        "x_train": Expected("float32", (7352, 9, 128)),
        "y_train": Expected("uint8", (7352,), (1226, 1073, 986, 1286, 1374, 1407)),
        "subject_train": Expected("uint8", (7352,), HAR_WINDOWS_OF_TRAIN),
        "x_test": Expected("float32", (2947, 9, 128)),
        "y_test": Expected("uint8", (2947,), (496, 471, 420, 491, 532, 537)),
        "subject_test": Expected("uint8", (2947,), HAR_WINDOWS_OF_TEST),
    },
    licence="CC BY 4.0 says the UCI repository; the data set's own README forbids commercial use and asks for citation",
)

DATASETS: dict[str, Description] = {each.name: each for each in (MNIST, CIFAR10, WIKITEXT2, HAR)}


def describe(name: str) -> Description:
    """The description of a data set by name."""
    require_one_of("data set", name, DATASETS)
    return DATASETS[name]
