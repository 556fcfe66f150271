"""What one training step of a task costs at each level: parameters, FLOPs and memory, counted on the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from whalefl.subnet.plans import Prefix
from whalefl.tasks.task import Shape, Task
from whalefl.values import Ladder

_BYTES = 4  # fp32
_COPIES = 4  # weights, gradients, momentum, and the slice as received


@dataclass(frozen=True)
class LevelCost:
    """One level: parameters of the slice, FLOPs of a training step and bytes of activations per sample."""

    level: int
    parameters: int
    flops: float
    activation_bytes: float

    def memory_mb(self, batch: int) -> float:
        """Memory to train at this level: copies of the slice, and the activations of a batch."""
        return (self.parameters * _COPIES * _BYTES + self.activation_bytes * batch) / 1e6


def level_costs(task: Task, ladder: Ladder) -> tuple[LevelCost, ...]:
    """The cost of every level, widest first. Every extraction keeps as many indices as a prefix does."""
    return tuple(_level_cost(task, level, ladder.width(level)) for level in ladder)


def _level_cost(task: Task, level: int, width: float) -> LevelCost:
    shape = Shape.of(Prefix().plan(task.axes, width, 0, 0, 0), width)
    model = task.blank(shape)
    activations: list[int] = []

    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        activations.append(prod(output.shape))

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(note)
    samples = 2  # batch statistics need more than one
    inputs = task.prepare(task.train.inputs[:1]).to("meta").repeat(samples, *[1] * (task.train.inputs.ndim - 1))
    with FlopCounterMode(display=False) as counter:
        logits = model(inputs).flatten(0, -2)
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device="meta"))
        torch.autograd.grad(loss, list(model.parameters()))
    return LevelCost(
        level=level,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=counter.get_total_flops() / samples,
        activation_bytes=sum(activations) * _BYTES / samples,
    )
