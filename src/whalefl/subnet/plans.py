"""The three ways to choose which indices of an axis a slice keeps: prefix, random, rolling.

All draw one choice per axis, so that every dimension that shares an axis stays aligned (residual sums, queries with
keys, embeddings with positions). In one round and on one device the plans of all levels are nested.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from whalefl.rng import stream
from whalefl.subnet.axes import Axes, Plan


class Extraction(Protocol):
    """Which indices a device trains, given how wide its slice is."""

    @property
    def name(self) -> str: ...

    @property
    def nested(self) -> bool:
        """Whether the slice of a level is the same for all devices and rounds (then the model serves every size)."""
        ...

    def plan(self, axes: Axes, width: float, round: int, device: int, seed: int) -> Plan: ...


def kept(size: int, width: float) -> int:
    """How many indices of an axis a width keeps: ceil(width x size), at least one."""
    # The tolerance keeps 0.1 * 30 = 3.0000000000000004 from becoming 4.
    return max(1, ceil(width * size - 1e-9))


@dataclass(frozen=True)
class Prefix:
    """The first indices of every axis (HeteroFL): nested slices W^P < ... < W^1."""

    name: str = "prefix"
    nested: bool = True

    def plan(self, axes: Axes, width: float, round: int, device: int, seed: int) -> Plan:
        return {axis: np.arange(kept(size, width)) for axis, size in axes.sizes.items()}


@dataclass(frozen=True)
class Random:
    """Indices drawn anew for every device and round (federated dropout), one draw per axis."""

    name: str = "random"
    nested: bool = False

    def plan(self, axes: Axes, width: float, round: int, device: int, seed: int) -> Plan:
        def draw(axis: str, size: int) -> NDArray[np.int64]:
            order = stream(seed, "plan", axis, device, round).permutation(size)
            return np.sort(order[: kept(size, width)])

        return {axis: draw(axis, size) for axis, size in axes.sizes.items()}


@dataclass(frozen=True)
class Rolling:
    """A window that moves by one index every round (FedRolex): (r + j) mod n for j = 0 .. kept - 1."""

    name: str = "rolling"
    nested: bool = False

    def plan(self, axes: Axes, width: float, round: int, device: int, seed: int) -> Plan:
        return {axis: np.sort((round + np.arange(kept(size, width))) % size) for axis, size in axes.sizes.items()}


EXTRACTIONS: dict[str, Extraction] = {e.name: e for e in (Prefix(), Random(), Rolling())}
