"""Many devices at once on one GPU: recorded training steps, replayed side by side.

Every device of a round trains in a slot: a model with fixed buffers whose step was recorded once as a CUDA graph.
Slots of the same shape are interchangeable, so any mix of levels is a choice of slots, and slots replay on streams of
their own, so the small kernels of many devices overlap. What a round needs is copied in before it starts and read back
once when it ends; in between the processor only starts replays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from whalefl.errors import require_one_of
from whalefl.federation.engine import PRECISIONS, Precision, use_precision
from whalefl.federation.local_training import Order, Outcome, absent_classes, outcome_of, unit_index
from whalefl.federation.steps import Batch, Learner, training_step
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import PartialSums, by_plan, counting_mask
from whalefl.subnet.slicing import Index, Weights, as_tensors, plan_index, plan_key
from whalefl.tasks.task import Shape, Task

_STREAMS = 20
_WARM_UP = 3  # steps before recording, in which libraries choose their algorithms


class GraphEngine:
    """Trains all devices of a round at once on the GPU that holds the task's data."""

    def __init__(self, task: Task, training: Training, precision: Precision = "tf32") -> None:
        require_one_of("precision", precision, PRECISIONS)
        self.task, self.training, self.precision = task, training, precision
        self._slots: dict[tuple[object, ...], list[Slot]] = defaultdict(list)
        self._streams = [torch.cuda.Stream() for _ in range(_STREAMS)]  # type: ignore[no-untyped-call]
        use_precision(precision)

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        # The widest take longest, so they start first.
        placed = self._place(sorted(orders, key=lambda order: order.level))
        self._load(weights, placed)
        self._replay(placed)
        sums = self._collect(placed)
        results = torch.stack([slot.results for _, slot in placed]).cpu()  # the only wait of a round
        outcomes = [
            outcome_of(self.task, order, slot.flat.numel(), row)
            for (order, slot), row in zip(placed, results, strict=True)
        ]
        return sums, outcomes

    def _place(self, orders: Sequence[Order]) -> list[tuple[Order, Slot]]:
        """A slot for each order; new ones are recorded where none is free."""
        taken: dict[tuple[object, ...], int] = defaultdict(int)
        placed = []
        for order in orders:
            key = slot_key(order)
            if taken[key] == len(self._slots[key]):
                self._slots[key].append(Slot(self.task, self.training, self.precision, order))
            placed.append((order, self._slots[key][taken[key]]))
            taken[key] += 1
        return placed

    def _load(self, weights: Weights, placed: Sequence[tuple[Order, Slot]]) -> None:
        torch.cuda.manual_seed(placed[0][0].noise_seed)
        pieces: dict[tuple[bytes, ...], Tensor] = {}
        for order, slot in placed:
            key, index = plan_key(self.task.axes, order.plan), plan_index(self.task.axes, order.plan)
            if key not in pieces:  # devices with the same plan start from the same slice
                pieces[key] = torch.cat([_rows(weights[name][index[name]]).flatten() for name in slot.names])
            slot.load(order, pieces[key])

    def _replay(self, placed: Sequence[tuple[Order, Slot]]) -> None:
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        for step in range(max(len(order.batches) for order, _ in placed)):
            for number, (order, slot) in enumerate(placed):
                if step < len(order.batches):
                    with torch.cuda.stream(self._streams[number % _STREAMS]):
                        slot.replay(measured=step in order.fisher_steps)
        for stream in self._streams:
            main.wait_stream(stream)

    def _collect(self, placed: Sequence[tuple[Order, Slot]]) -> PartialSums:
        """The sum of all slices: first of those with the same plan, then into the whole model."""
        axes = self.task.axes
        sums = PartialSums(axes, self.task.train.inputs.device)
        slots = {id(order.contribution): slot for order, slot in placed}
        for group in by_plan(axes, [order.contribution for order, _ in placed]):
            total = torch.zeros_like(slots[id(group[0])].flat, dtype=torch.float64)
            for contribution in group:
                slot = slots[id(contribution)]
                for name in axes.labels:
                    rows = counting_mask(axes, name, contribution)
                    if rows is not None:
                        slot.learner.weights[name].data.masked_fill_(~rows.to(total.device), 0.0)
                total.add_(slot.flat, alpha=contribution.weight)
            index = plan_index(axes, group[0].plan)
            for name, view in slots[id(group[0])].views(total).items():
                sums.sums[name][index[name]] += view
        sums.contributions = [order.contribution for order, _ in placed]
        return sums


def _rows(tensor: Tensor) -> Tensor:
    """A convolution's weights with their channels last, which is how the GPU's matrix units want them."""
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor


def _channels_last(_model: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
    return (inputs[0].contiguous(memory_format=torch.channels_last),) if inputs[0].ndim == 4 else None


def slot_key(order: Order) -> tuple[object, ...]:
    """Orders with the same key can train in the same slot."""
    sizes = tuple(len(indices) for indices in order.plan.values())
    return (*sizes, order.width, order.batches.shape, order.fisher_draws.shape, order.labels is None)


class Slot:
    """A place for one device: a model, fixed buffers for everything an order brings, and its recorded steps."""

    def __init__(self, task: Task, training: Training, precision: Precision, order: Order) -> None:
        self.task, self.training, self.precision = task, training, precision
        self.place = task.train.inputs.device
        model = task.build(Shape.of(order.plan, order.width)).to(self.place).train()
        self.names = [name for name, _ in model.named_parameters()]
        self.flat = torch.cat([_rows(p.detach()).flatten() for p in model.parameters()])
        self.learner = self._learner(model, order)
        self.indices = torch.zeros(order.batches.shape, dtype=torch.int64, device=self.place)
        self.augment_draws = self._like(order.augment_draws)
        self.fisher_draws = self._like(order.fisher_draws)
        self.lr = torch.zeros((), device=self.place)
        self.step = torch.zeros(1, dtype=torch.int64, device=self.place)
        self.measurement = torch.zeros(1, dtype=torch.int64, device=self.place)
        # Loss, squared norm over the slice, squared norm over the unit inside it: for each step or measurement.
        self.results = torch.zeros(3, len(order.batches), dtype=torch.float64, device=self.place)
        self._plain = self._record(measured=False)
        self._measured = self._record(measured=True) if order.fisher_steps else self._plain

    def _like(self, draws: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> Tensor | None:
        return None if draws is None else torch.zeros(draws.shape, device=self.place)

    def _learner(self, model: nn.Module, order: Order) -> Learner:
        """The model with its weights moved into one flat buffer, so that loading and summing are one copy each."""
        for parameter, view in zip(model.parameters(), self.views(self.flat, model).values(), strict=True):
            parameter.data = view
        model.register_forward_pre_hook(_channels_last)
        absent = None if order.labels is None else torch.zeros(self.task.classes, dtype=torch.bool, device=self.place)
        return Learner(
            model=model,
            weights=dict(model.named_parameters()),
            momentum=[torch.zeros_like(parameter) for parameter in model.parameters()],
            absent=absent,
            unit={name: self._fixed(index) for name, index in unit_index(self.task.axes, order).items()},
        )

    def _fixed(self, index: Index) -> Index:
        """An index whose parts are buffers of this slot, since a rolling or random unit moves from round to round."""
        return tuple(part.to(self.place) if isinstance(part, Tensor) else part for part in as_tensors(index))

    def views(self, flat: Tensor, model: nn.Module | None = None) -> dict[str, Tensor]:
        """A flat buffer as parameters of this slot's shapes, images with their channels last."""
        parameters = dict((model or self.learner.model).named_parameters())
        parts = torch.split(flat, [p.numel() for p in parameters.values()])
        rows = {name: part.view(_rows(p).shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        return {name: row.permute(0, 3, 1, 2) if row.ndim == 4 else row for name, row in rows.items()}

    def _record(self, measured: bool) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._restart()
                self._train_once(measured)
            self._restart()
            torch.cuda.synchronize()
            # A recorded product keeps the address of its scratch memory, and slots run side by side: each its own.
            torch._C._cuda_clearCublasWorkspaces()
            graph.capture_begin()
            self._train_once(measured)
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def _train_once(self, measured: bool) -> None:
        """One step on whatever the buffers hold."""
        augment = None if self.augment_draws is None else self.augment_draws.index_select(0, self.step)[0]
        draws = None
        if measured and self.fisher_draws is not None:
            draws = self.fisher_draws.index_select(0, self.measurement)[0]
        batch = Batch(self.indices.index_select(0, self.step)[0], augment, draws)
        with self._arithmetic():
            result = training_step(self.task, self.training, self.learner, batch, self.lr)
        self.results[0].index_copy_(0, self.step, result.loss.double().reshape(1))
        if result.whole is not None and result.unit is not None:
            self.results[1].index_copy_(0, self.measurement, result.whole.reshape(1))
            self.results[2].index_copy_(0, self.measurement, result.unit.reshape(1))
            self.measurement += 1
        self.step += 1

    def _arithmetic(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)

    def _restart(self) -> None:
        self.step.zero_()
        self.measurement.zero_()
        torch._foreach_zero_(self.learner.momentum)

    def load(self, order: Order, piece: Tensor) -> None:
        """Copy an order and its slice into the buffers."""
        self.flat.copy_(piece)
        self._restart()
        self.indices.copy_(torch.from_numpy(order.batches), non_blocking=True)
        self.lr.fill_(order.lr)
        if self.augment_draws is not None and order.augment_draws is not None:
            self.augment_draws.copy_(torch.from_numpy(order.augment_draws), non_blocking=True)
        if self.fisher_draws is not None and order.fisher_steps:
            self.fisher_draws.copy_(torch.from_numpy(order.fisher_draws), non_blocking=True)
            for name, index in unit_index(self.task.axes, order).items():
                for buffer, part in zip(self.learner.unit[name], as_tensors(index), strict=True):
                    if isinstance(buffer, Tensor) and isinstance(part, Tensor):
                        buffer.copy_(part, non_blocking=True)
        if self.learner.absent is not None and order.labels is not None:
            self.learner.absent.copy_(absent_classes(self.task.classes, order.labels), non_blocking=True)

    def replay(self, measured: bool) -> None:
        (self._measured if measured else self._plain).replay()
