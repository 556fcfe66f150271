"""What a device measures of itself: its speed, the load of others, its free memory, its link."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

import psutil
import torch

from whalefl.federation.local_training import train_slice
from whalefl.federation.rounds import Federation, Member, make_order
from whalefl.federation.stacks import resident
from whalefl.flower.memory import Curve
from whalefl.flower.stopwatch import Transfers
from whalefl.tasks.task import Shape

_SHORTEST_S = 1e-3
_FEWEST_BYTES = 30_000
"""Shorter transfers say more about latency than about the rate."""


def link_mbps(transfers: Transfers, message: str, received: int, sent: int) -> float | None:
    """The rate of the last transfers, from the device's own stopwatch; None where they were too small to tell."""
    bytes_, seconds = 0, 0.0
    if transfers.message == message and received >= _FEWEST_BYTES:
        bytes_, seconds = received, transfers.down_s
    if transfers.up_s > 0 and sent >= _FEWEST_BYTES:
        bytes_, seconds = bytes_ + sent, seconds + transfers.up_s
    return bytes_ * 8e-6 / max(seconds, _SHORTEST_S) if bytes_ else None


def told_mbps(exchange_s: float | None, held_s: float, bytes_: int) -> float | None:
    """The rate from what the server saw of the last exchange, less the time the device held the message.

    A lower bound: it counts Flower's own delays as transfer. It serves where no supervisor runs the transfers.
    """
    if exchange_s is None or bytes_ < _FEWEST_BYTES:
        return None
    return bytes_ * 8e-6 / max(exchange_s - held_s, _SHORTEST_S)


def free_memory_mb() -> float:
    return float(psutil.virtual_memory().available) / 1e6


def load_slowdown(threads: int, seconds: float = 0.2) -> float:
    """By how much others slow this device down now: 1 while they leave a core for each of its threads."""
    cores = os.cpu_count() or 1
    busy = float(psutil.cpu_percent(interval=seconds)) / 100 * cores
    return max(1.0, (busy + threads) / cores)


def measured_curve(federation: Federation, member: Member, steps: int = 2) -> Curve:
    """Seconds per sample at every level, from a few mini-batches each on weights that nobody uses."""
    points = {}
    for level in federation.settings.ladder:
        order = make_order(federation, 1, member, 0, level)
        few = replace(
            order,
            batches=order.batches[:steps],
            augment_draws=None if order.augment_draws is None else order.augment_draws[:steps],
            fisher_steps=(),
        )
        model = resident(federation.task.build(Shape.of(order.plan, order.width)), torch.device("cpu")).train()
        train_slice(federation.task, model, federation.settings.training, replace(few, batches=few.batches[:1]))
        start = time.perf_counter()
        train_slice(federation.task, model, federation.settings.training, few)
        points[member.works[level - 1].flops] = (time.perf_counter() - start) / few.batches.size
    return rising(sorted(points.items()))


def rising(points: Sequence[tuple[float, float]]) -> Curve:
    """The same curve without dips: a wider model is never faster, whatever a noisy clock says."""
    highest, result = 0.0, []
    for flops, seconds in points:
        highest = max(highest, seconds)
        result.append((float(flops), highest))
    return tuple(result)
