"""The average of nested, overlapping or disjoint slices, coordinate by coordinate, as they arrive.

Sums are float64 and rounded once when the round closes, so the order of arrival does not show. How many devices
trained a coordinate follows from their plans alone, so only the sums stream; memory grows with the model and not
with the number of devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whalefl.subnet.axes import Axes, Plan
from whalefl.subnet.slicing import Index, Weights, index_of


@dataclass(frozen=True)
class Contribution:
    """What decides where a device counts: its plan, the labels it owns (None: every label), its weight."""

    plan: Plan
    owned: tuple[int, ...] | None = None
    weight: float = 1.0


def placements(axes: Axes, contribution: Contribution) -> Iterator[tuple[str, Index, tuple[int, ...] | None]]:
    """For every parameter: where the slice lies in it, and which of its label rows count (None: all of them)."""
    for name, kept in axes.parameter_positions(contribution.plan).items():
        yield name, index_of(kept), contribution.owned if name in axes.labels else None


class PartialSums:
    """Running sums of the slices that have arrived. Several of them can be merged."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in axes.shapes.items()}
        self.contributions: list[Contribution] = []

    def add(self, contribution: Contribution, piece: Weights) -> None:
        """Add one device's trained slice."""
        for name, index, rows in placements(self.axes, contribution):
            value = piece[name].double() * contribution.weight
            if rows is not None:
                value = _only_rows(value, self.axes.labels[name], rows)
            self.sums[name][index] += value
        self.contributions.append(contribution)

    def merge(self, other: PartialSums) -> None:
        for name, total in other.sums.items():
            self.sums[name] += total
        self.contributions.extend(other.contributions)

    def average(self, weights: Weights) -> dict[str, Tensor]:
        r"""The new global model; coordinates that nobody trained keep their value.

        eq:HeteroFLaggre1 and eq:aggre: W_g = W_g^P u U_{p=2..P} (W_g^{p-1} \ W_g^p), where each region is the mean
        over the devices whose slice contains it. Written per coordinate: w_c = (1/|M_c|) sum_{m in M_c} w_{m,c}.
        """
        counts = count_devices(self.axes, self.contributions)
        return {
            name: torch.where(counts[name] > 0, self.sums[name] / counts[name], old.double()).to(old.dtype)
            for name, old in weights.items()
        }


def count_devices(axes: Axes, contributions: Iterable[Contribution]) -> dict[str, Tensor]:
    """How many devices (or how much weight) trained each coordinate, from the plans alone."""
    counts = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in axes.shapes.items()}
    for group in by_plan(contributions):
        for name, index, rows in placements(axes, group[0]):
            if rows is None:
                counts[name][index] += sum(c.weight for c in group)
                continue
            dim = axes.labels[name]
            per_row = torch.zeros(axes.shapes[name][dim], dtype=torch.float64)
            for contribution in group:
                per_row[list(contribution.owned or ())] += contribution.weight
            shape = [-1 if d == dim else 1 for d in range(counts[name].ndim)]
            counts[name][index] += per_row.reshape(shape)
    return counts


def by_plan(contributions: Iterable[Contribution]) -> list[Sequence[Contribution]]:
    """Contributions with the same plan and the same kind of ownership, together: prefix plans make few groups."""
    groups: dict[tuple[object, ...], list[Contribution]] = defaultdict(list)
    for contribution in contributions:
        plan = tuple((axis, indices.tobytes()) for axis, indices in sorted(contribution.plan.items()))
        groups[(plan, contribution.owned is None)].append(contribution)
    return list(groups.values())


def _only_rows(value: Tensor, dim: int, rows: tuple[int, ...]) -> Tensor:
    """The value with every label row that is not in `rows` set to zero."""
    mask = torch.zeros(value.shape[dim], dtype=torch.bool)
    mask[list(rows)] = True
    shape = [-1 if d == dim else 1 for d in range(value.ndim)]
    return torch.where(mask.reshape(shape), value, torch.zeros((), dtype=value.dtype))
