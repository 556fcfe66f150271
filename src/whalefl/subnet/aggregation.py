"""The average of nested, overlapping or disjoint slices, coordinate by coordinate, as they arrive.

Sums are float64 and rounded once when the round closes, so the order of arrival does not show. How many devices
trained a coordinate follows from their plans alone, so only the sums stream; memory grows with the model and not
with the number of devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whalefl.subnet.axes import Axes, Dimension, Plan, Segment
from whalefl.subnet.slicing import Weights, add_at, plan_index, plan_key

_LETTERS = ascii_letters.replace("m", "")  # of dimensions; m stands for the devices
_PIECE = 1 << 16  # numbers, which stay in the caches of a core


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
        new = join_flat(self.axes, weights).clone()
        for own, total, count in in_pieces(new, self.flat, join_flat(self.axes, counts).to(new.device)):
            own.copy_(torch.where(count > 0, (total / count).to(own.dtype), own))
        return split_flat(self.axes, new)


def split_flat(axes: Axes, flat: Tensor) -> dict[str, Tensor]:
    """The parameters of the whole model as views of one piece of memory that holds them one after another."""
    parts = torch.split(flat, [prod(shape) for shape in axes.shapes.values()])
    return {name: part.view(shape) for part, (name, shape) in zip(parts, axes.shapes.items(), strict=True)}


def join_flat(axes: Axes, parameters: Weights) -> Tensor:
    """All parameters one after another: the inverse of `split_flat`. What that has split is found again, not copied."""
    whole = parameters[next(iter(axes.shapes))]._base
    if whole is not None and whole.shape == (axes.count,):
        parts = split_flat(axes, whole)
        if all(parameters[name].is_set_to(part) for name, part in parts.items()):
            return whole
    return torch.cat([parameters[name].flatten() for name in axes.shapes])


def in_pieces(*flats: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Flat tensors stretch by stretch, so that what is computed on the way from one to the other takes no memory of
    their size; a GPU, which has less to do with many short ones, gets them whole."""
    length = _PIECE if flats[0].device.type == "cpu" else len(flats[0])
    return zip(*(torch.split(flat, length) for flat in flats), strict=True)


def count_devices(
    axes: Axes, contributions: Sequence[Contribution], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """How many devices (or how much weight) trained each coordinate, from the plans alone.

    A device counts in a coordinate if it keeps its position in every dimension, so with its weight w_m and its masks
    the count at (i, j) is sum_m w_m keeps_m(i) keeps_m(j): a product of matrices.
    """
    # Float32 counts whole numbers up to 16 million exactly, at half the traffic of float64.
    counts = split_flat(axes, torch.zeros(axes.count, device=device))
    weights = torch.tensor([contribution.weight for contribution in contributions], dtype=torch.float64, device=device)
    masks = {
        which: torch.from_numpy(mask).to(device, torch.float64)
        for which, mask in kept_positions(axes, contributions).items()
    }
    products: dict[tuple[Kept, ...], Tensor] = {}  # most parameters share their dimensions with others
    for name, dims in axes.parameters.items():
        where = {d: which for d in range(len(dims)) if (which := kept_dimension(axes, name, d)) in masks}
        factors = tuple(where.values())
        if factors not in products:
            letters = _LETTERS[: len(factors)]
            terms = ",".join(["m", *(f"m{letter}" for letter in letters)])
            products[factors] = torch.einsum(f"{terms}->{letters}", weights, *(masks[which] for which in factors))
        shape = [axes.shapes[name][d] if d in where else 1 for d in range(len(dims))]
        counts[name].copy_(products[factors].view(shape))
    return counts


Kept = tuple[Dimension, bool]
"""A dimension in which devices may differ, and whether its positions are labels."""


def kept_dimension(axes: Axes, name: str, d: int) -> Kept:
    return axes.parameters[name][d], axes.labels.get(name) == d


def kept_positions(axes: Axes, contributions: Sequence[Contribution]) -> dict[Kept, NDArray[np.bool_]]:
    """Of every dimension in which devices may differ, the positions that each one counts in: devices x positions."""
    owned = [contribution.owned for contribution in contributions]
    masks: dict[Kept, NDArray[np.bool_]] = {}
    for name, dims in axes.parameters.items():
        for d, dim in enumerate(dims):
            which = kept_dimension(axes, name, d)
            labels = which[1] and any(labels is not None for labels in owned)
            cut = any(isinstance(part, Segment) for part in dim)
            if which in masks or not (labels or cut):
                continue
            mask = masks[which] = np.zeros((len(contributions), axes.size(dim)), dtype=bool)
            for row, contribution in zip(mask, contributions, strict=True):
                row[axes.positions(dim, contribution.plan)] = True
                if which[1] and contribution.owned is not None:
                    row &= axes.counting_rows(name, contribution.owned)
    return masks


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
