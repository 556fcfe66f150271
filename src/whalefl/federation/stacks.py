"""Stacks: devices with slices of one shape, trained side by side in one model that stays in memory.

A narrow slice keeps a processor busy for less time than it takes to start its operations, so several of them share
one: the copies are the groups of grouped convolutions. A wide slice is a stack of one. Everything an order brings is
copied into fixed buffers, so that a step can be recorded once and replayed for any orders of the same shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from math import ceil, prod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.federation.halves import compute_in_half, renew
from whalefl.federation.orders import Order, Outcome, absent_classes, outcome_of
from whalefl.federation.steps import Batch, Learner, training_step
from whalefl.federation.training import Training
from whalefl.native.sgd import Descent
from whalefl.subnet.aggregation import PartialSums, by_copy
from whalefl.subnet.axes import Axes
from whalefl.subnet.slicing import Weights, inside, plan_index, plan_key, sliced_axes
from whalefl.tasks.layers import FUSED, fuse, fused_operations_work
from whalefl.tasks.task import Shape, Task

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")

_SGD = "whalefl.native.sgd"
_ALIGNED = 16  # bytes
_LINE = 64  # bytes of a processor's cache, where torch lets its tensors begin

NARROW = 1 / 4
"""Slices of this width and below are trained side by side."""

LARGEST = 8
"""So many of them at most, and fewer with large batches: their activations have to stay in the caches of a core."""

_SAMPLES = 32
"""At the whole width so many samples fill them."""

Key = tuple[object, ...]


def stack_key(order: Order) -> Key:
    """Orders with the same key can train in the same stack, one after the other."""
    sizes = tuple(len(indices) for indices in order.plan.values())
    room = (_room(order), *order.batches.shape[1:], *order.fisher_draws.shape)
    return (*sizes, order.width, *room, order.labels is None)


def _room(order: Order) -> int:
    """For how many mini-batches a stack has room: a power of two, so that few stacks serve orders of any length."""
    return 1 << (len(order.batches) - 1).bit_length()


def arrange(task: Task, orders: Sequence[Order], largest: int = LARGEST) -> list[list[Order]]:
    """Orders in groups that train as one stack each: narrow slices of one shape together, wide ones alone.

    The groups follow from the orders alone, not from their sequence nor from who carries them out. They come widest
    first, since those take longest. If one stack of at most `largest` is not enough, there is an even number of about
    equal ones.
    """
    alike: dict[Key, list[Order]] = defaultdict(list)
    for order in sorted(orders, key=lambda order: (order.level, order.device)):
        narrow = task.stack is not None and order.width <= NARROW
        steps = (len(order.batches), order.fisher_steps)
        alike[(*stack_key(order), *steps, None if narrow else order.device)].append(order)
    groups = []
    for same in alike.values():
        most = min(largest, max(1, int(_SAMPLES / (same[0].width * same[0].batches.shape[1]))))
        count = 1 if len(same) <= most else min(len(same), 2 * ceil(len(same) / (2 * most)))
        ends = [len(same) * (number + 1) // count for number in range(count)]
        groups += [same[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return groups


class Stack:
    """One model for some devices of one shape (that of `order`), and buffers for what a round brings them.

    `results` has three rows for each copy: the loss of every step, and the squared norms of the score gradient over
    the slice and over the unit inside it, the latter for the first so many columns as there are measurements.
    """

    def __init__(
        self,
        task: Task,
        training: Training,
        order: Order,
        copies: int = 1,
        precision: Precision = "fp32",
        model: nn.Module | None = None,
        desk: Desk | None = None,
    ) -> None:
        self.task, self.training = task, training
        self.place = task.train.inputs.device
        # On a processor narrow slices are no faster in bf16: casting takes what the products gain.
        self._half = precision == "bf16" and (self.place.type != "cpu" or order.width > NARROW)
        self._desk = desk or Desk()
        model = (model or _build(task, order, copies, self.place, self._desk)).train()
        self.weights: dict[str, Tensor] = dict(model.named_parameters())
        self.parts = by_copy([weight.detach() for weight in self.weights.values()], copies)
        room, batch = _room(order), order.batches.shape[1]
        self.inbox = Inbox(
            {
                "lr": ((), torch.float32),
                "step": ((1,), torch.int64),
                "measurement": ((1,), torch.int64),
                "indices": ((copies, room, batch), torch.int64),
                "augment": ((copies, room, batch, 0 if task.augment is None else task.augment.draws), torch.float32),
                "fisher": ((copies, *order.fisher_draws.shape), torch.float32),
                "absent": ((copies, task.classes), torch.bool),
            },
            self.place,
        )
        self.results = torch.zeros(copies, 3, room, dtype=torch.float64, device=self.place)
        trained = [weight for weight in self.weights.values() if weight.requires_grad]
        # A GPU takes longer to start so many casts than to carry them out; on a processor the descent makes them.
        plain = self.place.type == "cpu" and all(weight.dtype == torch.float32 for weight in trained)
        descends = plain and fused_operations_work(_SGD, "cpu")
        halves = compute_in_half(model) if self._half and (descends or self.place.type == "cuda") else {}
        leaves = [halves.get(weight, weight) for weight in trained]
        momentum = self._desk.like("momentum", trained)
        self.learner = Learner(
            model=model,
            copies=copies,
            weights=trained,
            leaves=leaves,
            momentum=momentum,
            absent=None if order.labels is None else self.inbox.there["absent"],
            unit=self._desk.like("unit", trained) if order.fisher_steps else [],
            descent=Descent(trained, momentum, leaves, copies) if descends else None,
        )
        self._augmented = order.augment_draws is not None
        self._unit_keys: list[object] = [None] * copies

    @torch.no_grad()
    def begin(self, orders: Sequence[Order]) -> None:
        """Copy in each copy's order, for the slices that are there; momentum starts afresh."""
        here = self.inbox.here
        here["lr"][()] = orders[0].lr
        here["step"][0] = here["measurement"][0] = 0
        for copy, order in enumerate(orders):
            here["indices"][copy, : len(order.batches)] = order.batches
            here["fisher"][copy] = order.fisher_draws
            if order.augment_draws is not None:
                here["augment"][copy, : len(order.batches)] = order.augment_draws
            if order.labels is not None:
                here["absent"][copy] = absent_classes(self.task.classes, order.labels)
        self.inbox.send()
        torch._foreach_zero_(self.learner.momentum)
        if self.learner.descent is not None:
            renew(self.learner.leaves, self.learner.weights)
        if self.learner.unit:
            self._mark_units(orders)

    def _mark_units(self, orders: Sequence[Order]) -> None:
        if self._desk.marked is not self._unit_keys:  # another stack has marked its own there
            self._unit_keys[:] = [None] * len(orders)
            self._desk.marked = self._unit_keys
        axes, trained = self.task.axes, [name for name, weight in self.weights.items() if weight.requires_grad]
        for copy, (order, masks) in enumerate(zip(orders, by_copy(self.learner.unit, len(orders)), strict=True)):
            key = (plan_key(axes, order.plan), plan_key(axes, order.unit_plan))
            if self._unit_keys[copy] == key:
                continue
            self._unit_keys[copy] = key
            marks = torch.from_numpy(unit_marks(axes, order, trained)).to(self.place, non_blocking=True)
            parts = iter(torch.split(marks, [size for mask in masks for size in mask.shape]))
            for mask in masks:
                views = [
                    next(parts).view([-1 if d == dim else 1 for d in range(mask.ndim)]) for dim in range(mask.ndim)
                ]
                *most, last = marks.new_ones(()), *views
                torch.mul(prod(most), last, out=mask)

    def advance(self, measured: bool) -> None:
        """One step on whatever the buffers hold."""
        now, measurement = self.inbox.there["step"], self.inbox.there["measurement"]

        def at(name: str, place: Tensor) -> Tensor:
            return self.inbox.there[name].index_select(1, place)[:, 0]

        batch = Batch(
            indices=at("indices", now),
            augment_draws=at("augment", now) if self._augmented else None,
            fisher_draws=at("fisher", measurement) if measured else None,
        )
        with self._arithmetic():
            result = training_step(self.task, self.training, self.learner, batch, self.inbox.there["lr"])
        self.results[:, 0].index_copy_(1, now, result.loss.double()[:, None])
        if result.whole is not None and result.unit is not None:
            norms = torch.stack([result.whole, result.unit], dim=1)
            self.results[:, 1:].index_copy_(2, measurement, norms[..., None])
            measurement += 1
        now += 1

    def _arithmetic(self) -> AbstractContextManager[object]:
        return torch.autocast(self.place.type, torch.bfloat16, enabled=self._half, cache_enabled=False)

    def outcomes(self, orders: Sequence[Order], results: Tensor) -> list[Outcome]:
        """What the devices report, from `results` as read back."""
        parameters = sum(part.numel() for part in self.parts[0])
        return [outcome_of(self.task, order, parameters, own) for order, own in zip(orders, results, strict=True)]


class Desk:
    """Where stacks lay out what they train: weights, their momentum, and the marks of the unit.

    Stacks that train one at a time share a desk, so that together they take no more memory than the largest of them.
    Of each kind it has room for so many `numbers` in so many `tensors`, or for as many as are first asked for. `marked`
    is whose marks lie there: what that stack remembers of them.
    """

    def __init__(self, numbers: int = 0, tensors: int = 0) -> None:
        self._least = numbers * torch.float32.itemsize + tensors * _LINE
        self._room: dict[str, Tensor] = {}
        self.marked: list[object] = []

    def like(self, kind: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Room for tensors of these shapes and layouts, whatever lies there."""
        sizes = [-(-tensor.nbytes // _LINE) * _LINE for tensor in tensors]
        ends = list(accumulate(sizes, initial=0))
        if kind not in self._room or len(self._room[kind]) < ends[-1]:
            # Whoever got less room before keeps it.
            self._room[kind] = torch.empty(max(self._least, ends[-1]), dtype=torch.uint8, device=tensors[0].device)
        return [
            self._room[kind][start : start + tensor.nbytes].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
            for tensor, start in zip(tensors, ends, strict=False)
        ]


def _build(task: Task, order: Order, copies: int, place: torch.device, desk: Desk) -> nn.Module:
    shape = Shape.of(order.plan, order.width)
    model = resident(task.build(shape) if copies == 1 or task.stack is None else task.stack(shape, copies), place)
    parameters = list(model.parameters())
    for parameter, there in zip(parameters, desk.like("weights", [p.detach() for p in parameters]), strict=True):
        parameter.data = there
    return model


def resident(model: nn.Module, place: torch.device) -> nn.Module:
    """A model on a device, its images with their channels last: what processors and GPUs alike are fast with.

    On a processor its operations are fused; on a GPU the engine that records steps does that.
    """
    model = model.to(place)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            # `contiguous` would leave weights of one channel as they are, and results would have their channels first.
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    if place.type == "cpu":
        fuse(model, place)
    return model


def get_ready(place: torch.device) -> None:
    """Compile what models and their steps are made of on a processor; processes forked afterwards find it there."""
    if place.type == "cpu":
        for module in (FUSED["cpu"], _SGD):
            fused_operations_work(module, "cpu")


class Inbox:
    """Everything orders bring to a stack, in one piece of memory that travels to its device in one copy.

    `here` are its fields as arrays to write, `there` the same fields as tensors on the device.
    """

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]], place: torch.device) -> None:
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in fields.values()]
        ends = np.cumsum([-(-size // _ALIGNED) * _ALIGNED for size in sizes]).tolist()
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=place)
        self._here = torch.zeros(ends[-1], dtype=torch.uint8).pin_memory() if place.type == "cuda" else self._there
        self.here: dict[str, NDArray[np.generic]] = {}
        self.there: dict[str, Tensor] = {}
        for (name, (shape, dtype)), start, size in zip(fields.items(), [0, *ends], sizes, strict=False):
            self.here[name] = self._here[start : start + size].view(dtype).view(shape).numpy()
            self.there[name] = self._there[start : start + size].view(dtype).view(shape)

    def send(self) -> None:
        """Let the device see what was written."""
        if self._here is not self._there:
            self._there.copy_(self._here, non_blocking=True)


@torch.no_grad()
def load(axes: Axes, weights: Weights, stack: Stack, orders: Sequence[Order]) -> None:
    """Copy into a stack the slices of its orders, and the orders."""
    for part, order in zip(stack.parts, orders, strict=True):
        index = plan_index(axes, order.plan)
        for name, own in zip(stack.weights, part, strict=True):
            own.copy_(weights[name][index[name]])
    stack.begin(orders)


def collect(sums: PartialSums, stack: Stack, orders: Sequence[Order]) -> None:
    """Add every slice of a stack to the sums."""
    slices = [dict(zip(stack.weights, part, strict=True)) for part in stack.parts]
    sums.add_all([order.contribution for order in orders], slices)


def unit_marks(axes: Axes, order: Order, names: Sequence[str]) -> NDArray[np.float32]:
    """For every dimension of these parameters of an order's slice: 1 at the positions of the smallest slice."""
    cut = sliced_axes(axes, order.plan)
    positions = cut.parameter_positions(inside(order.plan, order.unit_plan))
    marks = []
    for name in names:
        for size, kept in zip(cut.shapes[name], positions[name], strict=True):
            mark = np.zeros(size, dtype=np.float32)
            mark[kept] = 1.0
            marks.append(mark)
    return np.concatenate(marks)
