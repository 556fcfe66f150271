"""The floor of a round: its counted FLOPs over the rate of matrix products on the same hardware.

A round at its floor would be as fast as the hardware multiplies matrices, with nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from whalefl.federation.engine import use_precision
from whalefl.federation.orders import Order
from whalefl.federation.stacks import Precision
from whalefl.tasks.costs import made_up_inputs
from whalefl.tasks.products import product
from whalefl.tasks.task import Shape, Task

CORES = 2
"""Every variant on a CPU gets so many."""

_TRIES = 2
_SIZES = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True)
class Rate:
    """How many FLOPs of a matrix product a second gives, on so many threads (of a CPU)."""

    precision: Precision
    threads: int
    flops_per_s: float


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one example in a training step."""

    forward: float
    backward: float


def step_flops(task: Task, shape: Shape) -> StepFlops:
    """Counted by torch on the model itself, without computing anything."""
    model = task.blank(shape)
    inputs = made_up_inputs(task)
    with FlopCounterMode(display=False) as forward:
        logits = model(inputs).flatten(0, -2)
    loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device="meta"))
    with FlopCounterMode(display=False) as backward:
        loss.backward()  # type: ignore[no-untyped-call]
    return StepFlops(forward.get_total_flops() / len(inputs), backward.get_total_flops() / len(inputs))


def round_flops(task: Task, orders: Sequence[Order]) -> float:
    """FLOPs of a round: a forward and a backward pass for every mini-batch, one more backward for each measured one."""
    alike = Counter((order.width, order.batches.shape, len(order.fisher_steps)) for order in orders)
    shapes = {order.width: Shape.of(order.plan, order.width) for order in orders}
    costs = {width: step_flops(task, shape) for width, shape in shapes.items()}
    total = sum(
        clients * batch * (steps * costs[width].forward + (steps + measured) * costs[width].backward)
        for (width, (steps, batch), measured), clients in alike.items()
    )
    return float(total)


def measured_rates(device: str) -> tuple[Rate, ...]:
    """The rates of large matrix products right now."""
    if device == "cpu":
        wanted: list[tuple[Precision, int]] = [("fp32", 1), ("fp32", CORES), ("bf16", CORES)]
    else:
        wanted = [("tf32", 1), ("bf16", 1)]
    return tuple(Rate(precision, threads, _rate(device, precision, threads)) for precision, threads in wanted)


def best_rates(some: Sequence[Rate], others: Sequence[Rate]) -> tuple[Rate, ...]:
    """The better of two measurements of each rate: a busy machine shows too little, never too much."""
    return tuple(max(pair, key=lambda rate: rate.flops_per_s) for pair in zip(some, others, strict=True))


def floor_s(flops: float, rates: Sequence[Rate], precision: Precision) -> float:
    """The seconds that a round would take at the rate measured for a precision on all threads."""
    rate = max((r for r in rates if r.precision == precision), key=lambda r: r.threads)
    return flops / rate.flops_per_s


def _rate(device: str, precision: Precision, threads: int) -> float:
    size = _SIZES[device]
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.rand(size, size, device=device).to(kind) for _ in range(2))
    use_precision(precision)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        best = min(_seconds(left, right) for _ in range(_TRIES))
    finally:
        torch.set_num_threads(before)
    return 2 * size**3 / best


def _seconds(left: Tensor, right: Tensor) -> float:
    wait_for(left.device)
    start = perf_counter()
    product(left, right)
    wait_for(left.device)
    return perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
