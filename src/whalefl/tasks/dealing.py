"""The ways to deal a training set out: each gives one pile of example indices for every device.

All draws are made under the partition seed; which device gets which pile is decided elsewhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import WhaleflError, require
from whalefl.rng import stream

Indices = NDArray[np.int64]
Piles = list[Indices]

_LEAST = 2  # examples of a device: batch norm cannot normalise a single one
_DRAWS = 1000


def deal_by_sigma(labels: Indices, classes: int, sigma: int, devices: int, seed: int) -> Piles:
    """Exactly sigma classes for every device, and an even part of each (none where a class is smaller than that)."""
    require(sigma <= classes, "sigma", sigma, f"at most {classes}, the number of classes")
    owned = deal_classes(classes, sigma, devices, seed)
    pieces: list[Piles] = [[] for _ in range(devices)]
    for label in range(classes):
        owners = [device for device in range(devices) if label in owned[device]]
        if owners:
            for owner, piece in zip(owners, np.array_split(_members(labels, label, seed), len(owners)), strict=True):
                pieces[owner].append(piece)
    return [np.concatenate(mine) for mine in pieces]


def deal_classes(classes: int, sigma: int, devices: int, seed: int) -> list[set[int]]:
    """Exactly sigma different classes for every device; the classes' numbers of owners differ by at most one."""
    rng = stream(seed, "classes")
    places = np.full(classes, devices * sigma // classes)
    places[rng.permutation(classes)[: devices * sigma % classes]] += 1
    owned = []
    for _ in range(devices):
        # The classes with the most places left, ties broken by chance: taking these can never run into a dead end.
        chosen = np.lexsort((rng.random(classes), -places))[:sigma]
        places[chosen] -= 1
        owned.append({int(label) for label in chosen})
    return owned


def deal_evenly(count: int, devices: int, seed: int) -> Piles:
    """A random part for every device, sizes differing by at most one."""
    return np.array_split(stream(seed, "partition").permutation(count), devices)


def deal_blocks(count: int, devices: int) -> Piles:
    """Consecutive examples for every device, sizes differing by at most one."""
    return np.array_split(np.arange(count), devices)


def deal_by_dirichlet(labels: Indices, classes: int, alpha: float, devices: int, seed: int) -> Piles:
    """Every class cut in proportions drawn from Dirichlet(alpha): the smaller alpha, the more unlike the devices."""
    wanted = f"at least {_LEAST * devices}, {_LEAST} for each device"
    require(len(labels) >= _LEAST * devices, "the number of examples", len(labels), wanted)
    edges = _dirichlet_edges(np.bincount(labels, minlength=classes), alpha, devices, seed)
    cuts = [np.split(_members(labels, label, seed), edges[label]) for label in range(classes)]
    return [np.concatenate(pieces) for pieces in zip(*cuts, strict=True)]


def _dirichlet_edges(sizes: Indices, alpha: float, devices: int, seed: int) -> Indices:
    """For every class the places to cut at; drawn again until every device has something to train on.

    Rounding where to cut, instead of how much to give, loses no example and moves no part by more than one.
    """
    for draw in range(_DRAWS):
        proportions = stream(seed, "dirichlet", draw).dirichlet(np.full(devices, alpha), len(sizes))
        edges = np.rint(proportions.cumsum(axis=1)[:, :-1] * sizes[:, None]).astype(np.int64)
        counts = np.diff(edges, axis=1, prepend=0, append=sizes[:, None])
        if counts.sum(axis=0).min() >= _LEAST:
            return edges
    raise WhaleflError(
        f"partition.alpha is {alpha}, which left one of {devices} devices with fewer than {_LEAST} examples"
        f" in all of {_DRAWS} draws; it must be larger, or the devices fewer"
    )


def deal_groups(groups: Indices, devices: int, seed: int) -> Piles:
    """Whole groups for every device: the largest first, each to whoever has the fewest examples then."""
    names, sizes = np.unique(groups, return_counts=True)
    wanted = f"at least {devices}, one for each device"
    require(len(names) >= devices, "the number of groups", len(names), wanted)
    rng = stream(seed, "groups")
    held = np.zeros(devices, dtype=np.int64)
    owner = np.empty(len(names), dtype=np.int64)
    for group in np.lexsort((rng.random(len(names)), -sizes)):
        owner[group] = np.lexsort((rng.random(devices), held))[0]
        held[owner[group]] += sizes[group]
    owner_of_example = owner[np.searchsorted(names, groups)]
    return [np.flatnonzero(owner_of_example == device) for device in range(devices)]


def _members(labels: Indices, label: int, seed: int) -> Indices:
    """The examples of a class in random order."""
    return stream(seed, "partition", label).permutation(np.flatnonzero(labels == label))
