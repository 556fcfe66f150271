"""Who owns which examples: the training set is cut into shares, and every device gets one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import WhaleflError, require, require_one_of
from whalefl.rng import Seeds, stream
from whalefl.tasks import dealing

Kind = Literal["sigma", "iid", "dirichlet", "groups", "contiguous"]


@dataclass(frozen=True)
class Partition:
    """How the training set is cut, for as many devices as there are.

    sigma       every device owns exactly `sigma` classes, and an even part of each
    iid         every device owns an even part of the shuffled whole
    dirichlet   every class is cut in proportions drawn from Dirichlet(`alpha`); a small alpha is far from IID
    groups      every device owns whole groups (people, articles), sizes as even as the groups allow
    contiguous  every device owns consecutive examples in the order in which they are stored
    """

    sigma: int = 2
    kind: Kind = "sigma"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, get_args(Kind))
        require(self.sigma >= 1, "sigma", self.sigma, "at least 1")
        require(0 < self.alpha <= 1e6, "alpha", self.alpha, "above 0 and at most 1e6")


@dataclass(frozen=True, eq=False)
class Share:
    """One device's examples, as indices into the training set, and the classes (in texts: words) among them."""

    indices: NDArray[np.int64]
    owned: tuple[int, ...]


def split(
    partition: Partition,
    labels: NDArray[np.int64],
    classes: int,
    devices: int,
    seeds: Seeds,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Share, ...]:
    """The shares of all devices: the data is cut by the partition seed and dealt out by the assignment seed.

    `labels` are the targets, one for each example or, in texts, a row for each; `groups` says whom each example is of.
    """
    shares = []
    for device, pile in enumerate(_piles(partition, labels, classes, devices, seeds.partition, groups)):
        require(len(pile) > 0, f"the examples of device {device}", 0, "at least 1: use fewer devices")
        shares.append(Share(np.sort(pile), tuple(np.unique(labels[pile]).tolist())))
    order = stream(seeds.assignment, "assignment").permutation(devices)
    return tuple(shares[i] for i in order)


def _piles(
    partition: Partition,
    labels: NDArray[np.int64],
    classes: int,
    devices: int,
    seed: int,
    groups: NDArray[np.int64] | None,
) -> dealing.Piles:
    if partition.kind in ("sigma", "dirichlet"):
        wanted = "iid, groups or contiguous for a task with several labels in an example"
        require(labels.ndim == 1, "partition.kind", partition.kind, wanted)
    match partition.kind:
        case "sigma":
            return dealing.deal_by_sigma(labels, classes, partition.sigma, devices, seed)
        case "iid":
            return dealing.deal_evenly(len(labels), devices, seed)
        case "dirichlet":
            return dealing.deal_by_dirichlet(labels, classes, partition.alpha, devices, seed)
        case "groups":
            return dealing.deal_groups(_known(groups, len(labels)), devices, seed)
        case "contiguous":
            return dealing.deal_blocks(len(labels), devices)


def _known(groups: NDArray[np.int64] | None, examples: int) -> NDArray[np.int64]:
    if groups is None:
        raise WhaleflError(
            "partition.kind is 'groups', but this task does not say which group (person, article) an example is of;"
            " it must be one of sigma, iid, dirichlet, contiguous"
        )
    require(len(groups) == examples, "the length of task.groups", len(groups), f"{examples}, one for each example")
    return groups
