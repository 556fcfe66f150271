"""Tensors as one block of bytes, in the safetensors format: nothing in it is ever run."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from whalefl.flower.refusal import Refused

_HEADER = 100_000
"""Bytes that names and shapes may add to the numbers themselves."""


def to_block(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def from_block(block: bytes) -> dict[str, Tensor]:
    """The tensors in a block."""
    try:
        return load(block)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"tensors that cannot be read: {str(error)[:100]}") from None


def most_block_bytes(numbers: int) -> int:
    """The longest block of so many float32 numbers."""
    return 4 * numbers + _HEADER
