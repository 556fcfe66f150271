"""Cut a slice out of a model's weights and put it back: the only code that touches tensors by position."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whalefl.subnet.axes import Axes, Plan, Positions

Weights = Mapping[str, Tensor]
"""parameter name -> tensor."""

Index = tuple[slice | Tensor | EllipsisType, ...]


def index_of(positions: Positions) -> Index:
    """What selects these positions from a tensor: plain slices where all of them are contiguous (then views)."""
    runs = [_run(kept) for kept in positions]
    if all(run is not None for run in runs):
        return tuple(run for run in runs if run is not None) or (...,)
    rank = len(positions)
    return tuple(
        torch.from_numpy(np.ascontiguousarray(kept)).reshape([-1 if d == i else 1 for d in range(rank)])
        for i, kept in enumerate(positions)
    )


def _run(kept: NDArray[np.int64]) -> slice | None:
    """The positions as a slice if they follow each other."""
    if len(kept) == 0:
        return slice(0, 0)
    first, last = int(kept[0]), int(kept[-1])
    contiguous = last - first == len(kept) - 1 and bool(np.all(np.diff(kept) == 1))
    return slice(first, last + 1) if contiguous else None


def cut(axes: Axes, weights: Weights, plan: Plan) -> dict[str, Tensor]:
    """The slice of the weights that a plan keeps, as tensors of its own."""
    return {
        name: weights[name][index_of(kept)].clone(memory_format=torch.contiguous_format)
        for name, kept in axes.parameter_positions(plan).items()
    }


def put_back(axes: Axes, weights: Weights, plan: Plan, piece: Weights) -> dict[str, Tensor]:
    """The weights with the slice of a plan replaced by `piece`. The inverse of `cut` on the kept coordinates."""
    result = {name: tensor.clone() for name, tensor in weights.items()}
    for name, kept in axes.parameter_positions(plan).items():
        result[name][index_of(kept)] = piece[name]
    return result


def inside(outer: Plan, inner: Plan) -> Plan:
    """The plan of `inner` expressed in the indices of the slice that `outer` keeps; inner must lie inside outer."""
    return {axis: np.searchsorted(outer[axis], inner[axis]) for axis in outer}


def sliced_axes(axes: Axes, plan: Plan) -> Axes:
    """The axes of the slice itself: the same dimensions over smaller sizes."""
    sizes = {axis: len(indices) for axis, indices in plan.items()}
    return Axes(sizes, axes.parameters, axes.labels)
