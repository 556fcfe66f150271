"""The average of nested, overlapping or disjoint slices, coordinate by coordinate, as they arrive.

Sums are float64 and rounded once when the round closes, so the order of arrival does not show. How many devices
trained a coordinate follows from their plans alone, so only the sums stream; memory grows with the model and not
with the number of devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from whalefl.subnet.axes import Axes, Plan
from whalefl.subnet.slicing import Weights, add_at, plan_index, plan_key


@dataclass(frozen=True)
class Contribution:
    """What decides where a device counts: its plan, the labels it owns (None: every label), its weight."""

    plan: Plan
    owned: tuple[int, ...] | None = None
    weight: float = 1.0


def counting_mask(axes: Axes, name: str, contribution: Contribution) -> Tensor | None:
    """Which rows of a parameter count for a device, shaped to broadcast over its slice; None where all do."""
    if contribution.owned is None or name not in axes.labels:
        return None
    shape = [-1 if d == axes.labels[name] else 1 for d in range(len(axes.parameters[name]))]
    return torch.from_numpy(axes.counting_rows(name, contribution.owned)).reshape(shape)


class PartialSums:
    """Running sums of the slices that have arrived, parameter by parameter in one `flat` piece of memory.

    Several of them can be merged.
    """

    def __init__(self, axes: Axes, device: torch.device | str = "cpu", flat: Tensor | None = None) -> None:
        self.axes = axes
        self.flat = torch.zeros(axes.count, dtype=torch.float64, device=device) if flat is None else flat
        self.sums = split_flat(axes, self.flat)
        self.contributions: list[Contribution] = []

    def add(self, contribution: Contribution, piece: Weights) -> None:
        """Add one device's trained slice."""
        self.add_all([contribution], [piece])

    @torch.no_grad()
    def add_all(self, contributions: Sequence[Contribution], pieces: Sequence[Weights]) -> None:
        """Add several devices' trained slices; those of one plan are summed before they are put in their place."""
        for group in by_plan(self.axes, contributions):
            members = [contributions[place] for place in group]
            for name, index in plan_index(self.axes, members[0].plan).items():
                copies = [pieces[place][name] for place in group]
                stacked = copies[0][None] if len(copies) == 1 else torch.stack(copies)
                add_at(self.sums[name], index, self._total(name, members, stacked))
        self.contributions.extend(contributions)

    def _total(self, name: str, contributions: Sequence[Contribution], copies: Tensor) -> Tensor:
        """The weighted sum of what counts of these slices."""
        masks = [counting_mask(self.axes, name, contribution) for contribution in contributions]
        known = [mask for mask in masks if mask is not None]
        if known:
            rows = torch.stack([torch.ones_like(known[0]) if mask is None else mask for mask in masks])
            copies = torch.where(rows.to(copies.device), copies, 0.0)
        if any(contribution.weight != 1 for contribution in contributions):
            weights = torch.tensor([c.weight for c in contributions], dtype=torch.float64, device=copies.device)
            copies = copies * weights.view(-1, *[1] * (copies.ndim - 1))
        return copies[0] if len(copies) == 1 else copies.sum(dim=0, dtype=torch.float64)

    def merge(self, other: PartialSums) -> None:
        self.flat += other.flat
        self.contributions.extend(other.contributions)

    @torch.no_grad()
    def average(self, weights: Weights, counts: Weights) -> dict[str, Tensor]:
        r"""The new global model; coordinates that nobody trained keep their value. `counts` is `count_devices`.

        eq:HeteroFLaggre1 and eq:aggre: W_g = W_g^P u U_{p=2..P} (W_g^{p-1} \ W_g^p), where each region is the mean
        over the devices whose slice contains it. Written per coordinate: w_c = (1/|M_c|) sum_{m in M_c} w_{m,c}.
        """
        old = join_flat(self.axes, weights)
        count = join_flat(self.axes, counts).to(old.device)
        return split_flat(self.axes, torch.where(count > 0, self.flat / count, old.double()).to(old.dtype))


def split_flat(axes: Axes, flat: Tensor) -> dict[str, Tensor]:
    """The parameters of the whole model as views of one piece of memory that holds them one after another."""
    parts = torch.split(flat, [prod(shape) for shape in axes.shapes.values()])
    return {name: part.view(shape) for part, (name, shape) in zip(parts, axes.shapes.items(), strict=True)}


def join_flat(axes: Axes, parameters: Weights) -> Tensor:
    """All parameters one after another: the inverse of `split_flat`."""
    return torch.cat([parameters[name].flatten() for name in axes.shapes])


def count_devices(
    axes: Axes, contributions: Sequence[Contribution], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """How many devices (or how much weight) trained each coordinate, from the plans alone."""
    # Float32 counts whole numbers up to 16 million exactly, at half the traffic of float64.
    counts = split_flat(axes, torch.zeros(axes.count, device=device))
    for group in by_plan(axes, contributions):
        members = [contributions[place] for place in group]
        everyone = sum(member.weight for member in members)
        for name, index in plan_index(axes, members[0].plan).items():
            rows = counting_weight(axes, name, members)
            add_at(counts[name], index, everyone if rows is None else rows.to(device))
    return counts


def counting_weight(axes: Axes, name: str, contributions: Sequence[Contribution]) -> Tensor | None:
    """The weight of those who count, row by row, shaped to broadcast over a slice; None where everyone counts."""
    if name not in axes.labels or all(contribution.owned is None for contribution in contributions):
        return None
    shape = [-1 if d == axes.labels[name] else 1 for d in range(len(axes.parameters[name]))]
    rows = [
        c.weight if c.owned is None else c.weight * axes.counting_rows(name, c.owned).astype(np.float32)
        for c in contributions
    ]
    return torch.from_numpy(np.asarray(sum(rows), dtype=np.float32)).reshape(shape)


def by_plan(axes: Axes, contributions: Sequence[Contribution]) -> list[list[int]]:
    """The places of contributions with the same plan together: prefix plans make few groups."""
    groups: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
    for place, contribution in enumerate(contributions):
        groups[plan_key(axes, contribution.plan)].append(place)
    return list(groups.values())


def by_copy(tensors: Sequence[Tensor], copies: int) -> list[tuple[Tensor, ...]]:
    """The tensors of each copy; a tensor of all copies holds theirs one after another in its first dimension."""
    if copies == 1:
        return [tuple(tensors)]
    return list(zip(*(tensor.chunk(copies) for tensor in tensors), strict=True))
