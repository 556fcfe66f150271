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


_REMEMBERED = 64  # plans: a round of prefix plans needs one for each level


def plan_index(axes: Axes, plan: Plan) -> dict[str, Index]:
    """What selects the slice of a plan from every parameter; remembered for the latest plans."""
    memory: dict[tuple[bytes, ...], dict[str, Index]] = axes.placements
    key = plan_key(axes, plan)
    if key not in memory:
        if len(memory) >= _REMEMBERED:
            memory.pop(next(iter(memory)))
        memory[key] = {name: index_of(kept) for name, kept in axes.parameter_positions(plan).items()}
    return memory[key]


def plan_key(axes: Axes, plan: Plan) -> tuple[bytes, ...]:
    """Equal for equal plans."""
    return tuple(np.ascontiguousarray(plan[axis], dtype=np.int64).tobytes() for axis in axes.sizes)


def cut(axes: Axes, weights: Weights, plan: Plan) -> dict[str, Tensor]:
    """The slice of the weights that a plan keeps, as tensors of its own."""
    return {
        name: weights[name][index].clone(memory_format=torch.contiguous_format)
        for name, index in plan_index(axes, plan).items()
    }


def put_back(axes: Axes, weights: Weights, plan: Plan, piece: Weights) -> dict[str, Tensor]:
    """The weights with the slice of a plan replaced by `piece`. The inverse of `cut` on the kept coordinates."""
    result = {name: tensor.clone() for name, tensor in weights.items()}
    for name, index in plan_index(axes, plan).items():
        result[name][index] = piece[name]
    return result


def add_at(target: Tensor, index: Index, value: Tensor | float) -> None:
    """Add to the selected coordinates in place."""
    if any(isinstance(part, Tensor) for part in index):
        target[index] += value
    else:
        target[index].add_(value)  # a view: one pass over memory


def inside(outer: Plan, inner: Plan) -> Plan:
    """The plan of `inner` expressed in the indices of the slice that `outer` keeps; inner must lie inside outer."""
    return {axis: np.searchsorted(outer[axis], inner[axis]) for axis in outer}


def sliced_axes(axes: Axes, plan: Plan) -> Axes:
    """The axes of the slice itself: the same dimensions over smaller sizes."""
    sizes = {axis: len(indices) for axis, indices in plan.items()}
    return Axes(sizes, axes.parameters, axes.labels)
