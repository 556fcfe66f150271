"""Reading a CIFAR-10 batch without trusting it: the pickle may name three things of numpy, and gets stand-ins for them.

A pickle is a program, and its power lies in the functions it may name. The official batches need only numpy's array
reconstruction; it is answered here by objects that do nothing but collect bytes, so that not even numpy is called.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECONSTRUCT = {"numpy.core.multiarray", "numpy._core.multiarray"}  # before and since numpy 2


class _DType:
    """Stands in for a dtype; only unsigned bytes are admitted."""

    __slots__ = ()

    def __init__(self, kind: Any, *_: Any) -> None:
        if kind not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"the array type {kind!r} is not admitted")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which mean nothing for single bytes."""


class _Array:
    """Stands in for an array until its shape and content arrive."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, column_first, content = state
        if not isinstance(dtype, _DType) or not isinstance(content, bytes) or len(content) != math.prod(shape):
            raise pickle.UnpicklingError("an array does not hold what its shape says")
        flat = np.frombuffer(content, np.uint8)
        self.value = flat.reshape(shape, order="F" if column_first else "C").copy()


class _Name:
    """Something a pickle has named: it can be called, and nothing about it can be changed."""

    __slots__ = ("_make",)

    def __init__(self, make: type[_Array] | type[_DType] | None) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> _Array | _DType:
        if self._make is None:
            raise pickle.UnpicklingError("an array may only be made by its reconstruction")
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a name has no state")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if module in RECONSTRUCT and name == "_reconstruct":
            return _Name(_Array)
        if (module, name) == ("numpy", "dtype"):
            return _Name(_DType)
        if (module, name) == ("numpy", "ndarray"):
            return _Name(None)
        raise pickle.UnpicklingError(f"{module}.{name} is not admitted")


def load_batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The `data` and `labels` of one official batch."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        return batch[b"data"].value, np.array(batch[b"labels"], np.uint8)
    except Exception as error:  # a broken pickle may raise anything
        raise ValueError(f"the pickle is refused: {error}") from error
