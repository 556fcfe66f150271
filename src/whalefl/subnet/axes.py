"""A model as a set of named axes: what every dimension of every parameter is made of.

A dimension is a sequence of segments. `Segment(axis, outer, inner)` is an axis repeated `outer` times, each of its
indices `inner` positions wide; `Whole(n)` is never cut; several segments in one dimension are a concatenation.
Dimensions that must agree (a convolution's outputs with the next one's inputs, both sides of a residual sum,
queries with keys) name the same axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import WhaleflError, require

Plan = Mapping[str, NDArray[np.int64]]
"""axis -> the kept indices of that axis, sorted, without repeats: one device's slice in one round."""

Positions = tuple[NDArray[np.int64], ...]
"""For each dimension of a parameter, the positions that a plan keeps."""


@dataclass(frozen=True)
class Segment:
    """An axis as part of a dimension.

    Index i of the axis (of size n) in copy o stands at the positions (o n + i) inner ... (o n + i) inner + inner - 1
    of the segment. `outer` serves attention heads and fused projections, `inner` flattened feature maps.
    """

    axis: str
    outer: int = 1
    inner: int = 1

    def __post_init__(self) -> None:
        require(self.outer >= 1, "outer", self.outer, "at least 1")
        require(self.inner >= 1, "inner", self.inner, "at least 1")


@dataclass(frozen=True)
class Whole:
    """A part of a dimension that every slice keeps."""

    size: int

    def __post_init__(self) -> None:
        require(self.size >= 0, "size", self.size, "at least 0")


Part = Segment | Whole
Dimension = tuple[Part, ...]


def dimension(parts: str | int | Part | Sequence[str | int | Part]) -> Dimension:
    """Read the short form: an axis name, a size that is never cut, a part, or a sequence of these (concatenated)."""
    if isinstance(parts, str):
        return (Segment(parts),)
    if isinstance(parts, int):
        return (Whole(parts),)
    if isinstance(parts, Segment | Whole):
        return (parts,)
    return tuple(part for piece in parts for part in dimension(piece))


@dataclass(frozen=True)
class Axes:
    """The axes of a model: their full sizes, the dimensions of every parameter, and which rows belong to labels.

    `labels` maps a parameter to the dimension whose positions are class labels (a classifier's rows): there a
    device counts only in the rows of labels it owns. Of a concatenated dimension the first part are the labels, and
    the rest (an embedding's row for the mask token) counts for everyone.
    """

    sizes: Mapping[str, int]
    parameters: Mapping[str, tuple[Dimension, ...]]
    labels: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sizes: Mapping[str, int],
        parameters: Mapping[str, Sequence[str | int | Part | Sequence[str | int | Part]]],
        labels: Mapping[str, int] | None = None,
    ) -> Axes:
        """Declare axes in the short form, e.g. `{"conv.weight": ("channels", 1, 3, 3)}`."""
        full = {name: tuple(dimension(d) for d in dims) for name, dims in parameters.items()}
        return cls(dict(sizes), full, dict(labels or {}))

    def __post_init__(self) -> None:
        for axis, size in self.sizes.items():
            require(size >= 1, f"axis {axis}", size, "of size at least 1")
        for name, dims in self.parameters.items():
            for part in (part for dim in dims for part in dim):
                if isinstance(part, Segment) and part.axis not in self.sizes:
                    raise WhaleflError(f"parameter {name} names the axis {part.axis!r}, which has no size")
        for name, index in self.labels.items():
            known = name in self.parameters and 0 <= index < len(self.parameters[name])
            require(known, f"labels of {name}", index, "a dimension of a declared parameter")
            uncut = all(isinstance(part, Whole) for part in self.parameters[name][index])
            require(uncut, f"labels of {name}", index, "a dimension that is never cut")

    def size(self, dim: Dimension) -> int:
        """The full length of a dimension."""
        return sum(self._length(part) for part in dim)

    def _length(self, part: Part) -> int:
        return part.size if isinstance(part, Whole) else part.outer * self.sizes[part.axis] * part.inner

    def positions(self, dim: Dimension, plan: Plan) -> NDArray[np.int64]:
        """The positions of a dimension that a plan keeps, in order."""
        kept, start = [], 0
        for part in dim:
            if isinstance(part, Whole):
                kept.append(np.arange(start, start + part.size))
            else:
                size, indices = self.sizes[part.axis], plan[part.axis]
                copies = (np.arange(part.outer)[:, None] * size + indices[None, :]).reshape(-1)
                kept.append(start + (copies[:, None] * part.inner + np.arange(part.inner)).reshape(-1))
            start += self._length(part)
        return np.concatenate(kept) if kept else np.arange(0)

    def parameter_positions(self, plan: Plan) -> dict[str, Positions]:
        """For every parameter, the positions kept in each of its dimensions."""
        found = {dim: self.positions(dim, plan) for dim in self._dimensions}
        return {name: tuple(found[dim] for dim in dims) for name, dims in self.parameters.items()}

    def counting_rows(self, name: str, owned: Sequence[int]) -> NDArray[np.bool_]:
        """Which positions of a parameter's label dimension count for a device that owns these labels."""
        dim = self.parameters[name][self.labels[name]]
        counts = np.ones(self.size(dim), dtype=bool)
        counts[: self._length(dim[0])] = False
        counts[list(owned)] = True
        return counts

    @cached_property
    def _dimensions(self) -> frozenset[Dimension]:
        """Those that occur; most parameters share theirs with others."""
        return frozenset(dim for dims in self.parameters.values() for dim in dims)

    @cached_property
    def placements(self) -> dict[Any, Any]:
        """A place to remember where the slices of the latest plans lie."""
        return {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The full shape of every parameter."""
        return {name: tuple(self.size(dim) for dim in dims) for name, dims in self.parameters.items()}

    @cached_property
    def count(self) -> int:
        """The number of parameters of the full model."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def slice_count(self, plan: Plan) -> int:
        """The number of parameters in the slice of a plan."""
        positions = self.parameter_positions(plan)
        return sum(int(np.prod([len(kept) for kept in dims])) for dims in positions.values())

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise unless the declared dimensions are exactly those of the model's parameters."""
        for name in sorted(shapes.keys() | self.shapes.keys()):
            declared, actual = self.shapes.get(name), shapes.get(name)
            if declared is None or actual is None:
                where, there = ("axes", "model") if declared is None else ("model", "axes")
                raise WhaleflError(f"parameter {name} is in the {there} but not in the {where}; it must be in both")
            if declared != actual:
                raise WhaleflError(
                    f"parameter {name} has the shape {actual} in the model and {declared} in its axes; "
                    "they must be equal"
                )
