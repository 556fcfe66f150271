"""What one training step of a task costs at each level: parameters, FLOPs and memory, counted on the model itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from whalefl.errors import WhaleflError, require
from whalefl.subnet.axes import Plan
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
    """The cost of one level; raises where the model cannot be built at its width or does not answer for it."""
    plan = Prefix().plan(task.axes, width, 0, 0, 0)
    model = task.blank(Shape.of(plan, width))
    _check_shapes(task, model, plan, width)
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
        logits = _answers(task, model, inputs, width).flatten(0, -2)
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device="meta"))
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return LevelCost(
        level=level,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=counter.get_total_flops() / len(inputs),
        activation_bytes=sum(kept.values()) / len(inputs),
    )


def _check_shapes(task: Task, model: nn.Module, plan: Plan, width: float) -> None:
    kept = task.axes.parameter_positions(plan)
    for name, parameter in model.named_parameters():
        wanted, built = tuple(len(positions) for positions in kept[name]), tuple(parameter.shape)
        what = f"the shape of parameter {name} at width {width:g}"
        require(built == wanted, what, built, f"{wanted}: `build` must take the sizes that it is given")


def _answers(task: Task, model: nn.Module, inputs: Tensor, width: float) -> Tensor:
    """The model's logits, of as many classes and for as many targets as the task has."""
    suits = inputs.dtype == torch.float32 or not inputs.is_floating_point()
    require(suits, "what `prepare` returns", str(inputs.dtype), "torch.float32, as weights are, or whole numbers")
    try:
        logits: Tensor = model(inputs)
    except Exception as error:  # whatever goes wrong inside a model
        given, said = f"{inputs.dtype} {tuple(inputs.shape[1:])}", " ".join(str(error).split())
        why = f"{type(error).__name__}: {said}"
        raise WhaleflError(f"the model of task {task.name!r} fails at width {width:g} on {given}: {why}") from error
    outputs, rows = logits.shape[-1], logits[..., 0].numel() // len(inputs)
    require(task.classes == outputs, "classes", task.classes, f"{outputs}, as many as the model's outputs")
    targets = task.train.targets[0].numel()
    require(targets == rows, "train.targets", f"{targets} for an example", f"{rows}, as many as the model answers")
    return logits


def made_up_inputs(task: Task) -> Tensor:
    """Inputs as a model gets them, without any content: two, since batch statistics need more than one."""
    one = task.prepare(task.train.inputs[:1]).to("meta")
    return one.repeat(2, *[1] * (one.ndim - 1))
