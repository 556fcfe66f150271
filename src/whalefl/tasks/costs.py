"""What one training step of a task costs at each level: parameters, FLOPs and memory, counted on the model itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
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
    return tuple(level_cost(task, level, ladder.width(level)) for level in ladder)


def level_cost(task: Task, level: int, width: float) -> LevelCost:
    """The cost of one level."""
    shape = Shape.of(Prefix().plan(task.axes, width, 0, 0, 0), width)
    model = task.blank(shape)
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        """Count what the forward pass keeps for the backward pass, once however often it is kept."""
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    inputs = made_up_inputs(task)
    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(note, lambda tensor: tensor):
        logits = model(inputs).flatten(0, -2)
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device="meta"))
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return LevelCost(
        level=level,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=counter.get_total_flops() / len(inputs),
        activation_bytes=sum(kept.values()) / len(inputs),
    )


def made_up_inputs(task: Task) -> Tensor:
    """Inputs as a model gets them, without any content: two, since batch statistics need more than one."""
    one = task.prepare(task.train.inputs[:1]).to("meta")
    return one.repeat(2, *[1] * (one.ndim - 1))
