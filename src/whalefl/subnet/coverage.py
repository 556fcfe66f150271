"""How the devices of a round cover the model: which coordinates, by how many devices, with how many classes.

The devices that train a coordinate are those that keep its position in every dimension. Positions that the same
devices keep are counted together, so a round of prefix plans needs a few dozen cells for a model of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whalefl.subnet.aggregation import Contribution, in_pieces, join_flat, kept_dimension, kept_positions, split_flat
from whalefl.subnet.axes import Axes
from whalefl.subnet.slicing import Weights
from whalefl.values import CountShare, Coverage

LastTrained = Mapping[str, Tensor]
"""parameter -> for each coordinate the last round in which a device trained it (0: never)."""

Cells = tuple[NDArray[np.bool_], NDArray[np.int64]]
"""Groups of coordinates: which devices train them (cells x devices), and how many coordinates each group has."""

_MOST_CLASSES = 1000  # beyond that labels are words, and how many of them a region has seen says little


def never_trained(axes: Axes, device: torch.device | str = "cpu") -> LastTrained:
    return split_flat(axes, torch.zeros(axes.count, dtype=torch.int32, device=device))


def cover(
    axes: Axes, contributions: Sequence[Contribution], counts: Weights, last: LastTrained, round: int
) -> tuple[Coverage, LastTrained]:
    """The coverage of a round, and the updated memory of when each coordinate was last trained.

    `counts` is what `count_devices` says of the contributions.
    """
    trained = join_flat(axes, last).clone()
    found = []
    for own, count in in_pieces(trained, join_flat(axes, counts)):
        own.masked_fill_(count > 0, round)
        found.append(torch.stack([own.sum(dtype=torch.int64), own.min().long()]))
    totals, firsts = torch.stack(found, dim=1).tolist()  # one transfer: on a GPU every read of a number waits
    mean_last = sum(totals) / axes.count
    shares = count_shares(axes, contributions)
    return (
        Coverage(
            least=min((s.devices for s in shares if s.devices > 0), default=0),
            untouched=sum(s.share for s in shares if s.devices == 0),
            mean_age=round - mean_last,
            oldest_age=round - min(firsts),
            counts=shares,
        ),
        split_flat(axes, trained),
    )


def count_shares(axes: Axes, contributions: Sequence[Contribution]) -> tuple[CountShare, ...]:
    """For each number of devices: the share of coordinates trained by that many, and their mean number of classes."""
    owners = _owners(contributions)
    coordinates = np.zeros(len(contributions) + 1)
    classes = np.zeros(len(contributions) + 1)
    for trained, sizes in parameter_cells(axes, contributions):
        devices = trained.sum(axis=1)
        coordinates += np.bincount(devices, weights=sizes, minlength=len(coordinates))
        if owners is not None:
            seen = (trained.astype(np.float32) @ owners > 0).sum(axis=1)
            classes += np.bincount(devices, weights=seen * sizes, minlength=len(classes))
    return tuple(
        CountShare(
            devices=int(n),
            share=float(coordinates[n] / axes.count),
            classes=None if owners is None else float(classes[n] / coordinates[n]),
        )
        for n in np.flatnonzero(coordinates)
    )


def parameter_cells(axes: Axes, contributions: Sequence[Contribution]) -> Iterator[Cells]:
    """The cells of every parameter: the intersections of the cells of its dimensions."""
    masks = kept_positions(axes, contributions)
    found = {which: _grouped(np.ascontiguousarray(mask.T)) for which, mask in masks.items()}
    for name, shape in axes.shapes.items():
        trained, sizes = np.ones((1, len(contributions)), dtype=bool), np.ones(1, dtype=np.int64)
        for d, size in enumerate(shape):
            which = kept_dimension(axes, name, d)
            if which not in found:
                sizes = sizes * size
                continue
            more, lengths = found[which]
            trained = (trained[:, None, :] & more[None, :, :]).reshape(-1, len(contributions))
            sizes = (sizes[:, None] * lengths[None, :]).reshape(-1)
        yield trained, sizes


def _grouped(keeps: NDArray[np.bool_]) -> Cells:
    """Positions (positions x devices) grouped by the devices that keep them."""
    packed = np.packbits(keeps, axis=1)
    codes = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, lengths = np.unique(codes, return_index=True, return_counts=True)
    return keeps[first], lengths.astype(np.int64)


def _owners(contributions: Sequence[Contribution]) -> NDArray[np.float32] | None:
    """Devices x classes, one where a device owns a class; None where ownership is not known or means words."""
    known = [c.owned for c in contributions if c.owned is not None]
    if len(known) < len(contributions) or max(max(o, default=0) for o in known) >= _MOST_CLASSES:
        return None
    matrix = np.zeros((len(known), 1 + max(max(o, default=0) for o in known)), dtype=np.float32)
    for row, labels in enumerate(known):
        matrix[row, list(labels)] = 1
    return matrix
