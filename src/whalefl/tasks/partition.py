"""Who owns which examples: every device has exactly sigma classes, all classes and devices served evenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import require
from whalefl.rng import Seeds, stream


@dataclass(frozen=True)
class Partition:
    """`sigma` is the number of classes each device owns; sigma = all classes is IID."""

    sigma: int = 2

    def __post_init__(self) -> None:
        require(self.sigma >= 1, "sigma", self.sigma, "at least 1")


@dataclass(frozen=True, eq=False)
class Share:
    """One device's examples, as indices into the training set, and the classes it owns."""

    indices: NDArray[np.int64]
    owned: tuple[int, ...]


def split(
    partition: Partition, labels: NDArray[np.int64], classes: int, devices: int, seeds: Seeds
) -> tuple[Share, ...]:
    """The shares of all devices: the data is cut by the partition seed and dealt out by the assignment seed."""
    require(partition.sigma <= classes, "sigma", partition.sigma, f"at most {classes}, the number of classes")
    owned = deal_classes(classes, partition.sigma, devices, seeds.partition)
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(devices)]
    for label in range(classes):
        owners = [device for device in range(devices) if label in owned[device]]
        members = stream(seeds.partition, "partition", label).permutation(np.flatnonzero(labels == label))
        if owners:
            for owner, piece in zip(owners, np.array_split(members, len(owners)), strict=True):
                pieces[owner].append(piece)
    shares = [Share(np.sort(np.concatenate(mine)), tuple(sorted(own))) for mine, own in zip(pieces, owned, strict=True)]
    for device, share in enumerate(shares):
        require(len(share.indices) > 0, f"the examples of device {device}", 0, "at least 1: use fewer devices")
    order = stream(seeds.assignment, "assignment").permutation(devices)
    return tuple(shares[i] for i in order)


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
