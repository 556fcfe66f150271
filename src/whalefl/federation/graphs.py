"""Many devices at once on one GPU: recorded training steps, replayed side by side.

Every device of a round trains in a slot: a stack of one whose step was recorded once as a CUDA graph. Slots of the
same shape are interchangeable, so any mix of levels is a choice of slots; and slots replay on streams of their own, so
the small kernels of many devices overlap. (Stacks of several, which help a processor, do not help here: grouped
convolutions take longer than the single ones side by side.) The weights of a slot lie in one flat buffer, so that a
slice comes and goes in one operation. What a slot needs is copied in on its own stream just before its first replay,
while others train, and read back once when all have ended.

A step over thousands of words fills the GPU by itself, and takes a gigabyte. Where steps are like that there are only
a few *lanes*: each slot keeps to one of them, and the slots of a lane train in the same memory, one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from whalefl.errors import Diverged, require_one_of
from whalefl.federation.engine import Answer, Ask, use_precision, whole_model
from whalefl.federation.evaluation import Score, evaluate
from whalefl.federation.logits import MANY
from whalefl.federation.orders import Order
from whalefl.federation.stacks import PRECISIONS, Inbox, Key, Precision, Stack, stack_key
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import Contribution, PartialSums, by_plan, counting_mask, join_flat
from whalefl.subnet.axes import Axes, Plan
from whalefl.subnet.slicing import Weights, plan_key
from whalefl.tasks.layers import fuse
from whalefl.tasks.task import Shape, Task

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE as Pool  # memory that recorded graphs share

_STREAMS = 20
_LANES = 4
_FILLING = 2**24  # logits of a step that fills the GPU
_MOST_SHARES = 10_000

Placed = Sequence[tuple["Slot", Order]]


class Span(NamedTuple):
    """A parameter in a slot's flat buffer: from where to where, its shape there, and whether its channels are last.

    A convolution's are, since that is how the GPU's matrix units want them.
    """

    start: int
    stop: int
    shape: torch.Size
    last: bool


class GraphEngine:
    """Trains all devices of a round at once on the GPU that holds the task's data."""

    def __init__(self, task: Task, training: Training, precision: Precision = "tf32") -> None:
        require_one_of("precision", precision, PRECISIONS)
        self.task, self.training, self.precision = task, training, precision
        self.place = task.train.inputs.device
        self._slots: dict[Key, list[Slot]] = defaultdict(list)
        self._known_shares: dict[object, Tensor] = {}
        filling = training.batch * task.train.targets[0].numel() * task.classes >= _FILLING
        self._lanes = [torch.cuda.graph_pool_handle() for _ in range(_LANES)] if filling else []
        count = len(self._lanes) or _STREAMS
        self._streams = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
        use_precision(precision)

    def close(self) -> None:
        """There is nothing to give back."""

    def train(self, weights: Weights, orders: Sequence[Order]) -> Answer:
        (answer,) = self.train_all([(weights, orders)])
        if isinstance(answer, Diverged):
            raise answer
        return answer

    def train_all(self, asks: Sequence[Ask]) -> list[Answer | Diverged]:
        """The rounds of several runs side by side, as if they were one; their dropout has one source."""
        asked = [(number, order) for number, (_, orders) in enumerate(asks) for order in orders]
        asked.sort(key=lambda one: (one[1].level, one[1].device))  # the widest take longest, so they start first
        placed = self._place([order for _, order in asked])
        torch.cuda.manual_seed(asks[0][1][0].noise_seed)  # one source of noise for all slots, in no order of theirs
        places = [[place for place, (owner, _) in enumerate(asked) if owner == number] for number in range(len(asks))]
        batches = [self._aimed(placed, own) for own in places]
        sources = {
            place: (whole, nested.position)
            for (weights, _), own in zip(asks, batches, strict=True)
            for whole in [join_flat(self.task.axes, weights)]
            for nested in own
            for place in nested.places
        }
        self._replay(placed, sources)
        sums = [self._collect(own, [placed[place][1] for place in at]) for own, at in zip(batches, places, strict=True)]
        room = max(slot.stack.results.shape[-1] for slot, _ in placed)
        padded = [pad(slot.stack.results, (0, room - slot.stack.results.shape[-1])) for slot, _ in placed]
        results = torch.stack(padded).cpu()  # the only wait of a round
        return [_answer(own, [(*placed[p], results[p]) for p in at]) for own, at in zip(sums, places, strict=True)]

    def evaluate(self, weights: Weights, calibration: NDArray[np.int64]) -> Score:
        # Of thousands of classes many would have equal logits in 16 bits.
        half = self.precision == "bf16" and self.task.classes < MANY
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return evaluate(self.task, self._whole, weights, calibration)

    @cached_property
    def _whole(self) -> nn.Module:
        model = whole_model(self.task)
        fuse(model, self.task.train.inputs.device)
        return model

    def _place(self, orders: Sequence[Order]) -> Placed:
        """A slot for each order; new ones are recorded where none is free."""
        taken: dict[Key, int] = defaultdict(int)
        placed = []
        for order in orders:
            key = stack_key(order)
            if taken[key] == len(self._slots[key]):
                self._slots[key].append(self._new_slot(order, number=len(self._slots[key]) + order.level))
            placed.append((self._slots[key][taken[key]], order))
            taken[key] += 1
        return placed

    def _new_slot(self, order: Order, number: int) -> Slot:
        """A slot in memory of its own, or in a lane's; the slots of a level go round all lanes."""
        lane = number % len(self._lanes) if self._lanes else None
        pool = torch.cuda.graph_pool_handle() if lane is None else self._lanes[lane]
        return Slot(self.task, self.training, self.precision, order, pool, lane)

    def _aimed(self, placed: Placed, own: Sequence[int]) -> list[Nested]:
        """A run's slots, those with the same slice together; whatever their sums will need is sent now, since later it
        would wait."""
        batches = []
        for alike in by_plan(self.task.axes, [placed[place][1].contribution for place in own]):
            places = [own[number] for number in alike]
            members = [placed[place] for place in places]
            first, order = members[0]
            batches.append(Nested(places, [slot for slot, _ in members], first.aim(order.plan), self._shares(members)))
        return batches

    def _shares(self, members: Placed) -> dict[str, Tensor]:
        """By how much each device's rows of a parameter count, where that is not 1 for all of them."""
        contributions = [order.contribution for _, order in members]
        axes, names = self.task.axes, list[str]()
        if any(contribution.weight != 1 for contribution in contributions):
            names = list(axes.shapes)
        elif any(contribution.owned is not None for contribution in contributions):
            names = list(axes.labels)
        return {name: torch.stack([self._share(name, c) for c in contributions]) for name in names}

    def _share(self, name: str, contribution: Contribution) -> Tensor:
        """By how much a device's rows of a parameter count; kept on the GPU, since devices come again."""
        if len(self._known_shares) >= _MOST_SHARES:
            self._known_shares.clear()
        key = (name, contribution.owned, contribution.weight)
        if key not in self._known_shares:
            rows = counting_mask(self.task.axes, name, contribution)
            if rows is None:
                rows = torch.ones([1] * len(self.task.axes.shapes[name]))
            self._known_shares[key] = (rows * contribution.weight).to(self.place)
        return self._known_shares[key]

    def _replay(self, placed: Placed, sources: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Load every slot with its part of its run's model and train it, each on a stream of its own or on its lane's.

        `sources` are, for every place, the model and the positions in it.
        """
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        try:
            for step in range(max(len(order.batches) for _, order in placed)):
                for number, (slot, order) in enumerate(placed):
                    if step < len(order.batches):
                        torch.cuda.set_stream(self._streams[number % _STREAMS if slot.lane is None else slot.lane])
                        if step == 0:
                            whole, position = sources[number]
                            torch.index_select(whole, 0, position, out=slot.flat)
                            slot.stack.begin([order])
                        slot.replay(measured=step in order.fisher_steps)
        finally:  # whatever happens, what comes next is to be in order with all this
            torch.cuda.set_stream(main)
            for stream in self._streams:
                main.wait_stream(stream)

    def _collect(self, batches: Sequence[Nested], orders: Sequence[Order]) -> PartialSums:
        """The sum of all slices of a run: first of those with the same plan, then into the whole model."""
        sums = PartialSums(self.task.axes, self.place)
        for nested in batches:
            copies = torch.stack([slot.flat for slot in nested.slots])
            total = copies.sum(dim=0, dtype=torch.float64)
            for name, share in nested.shares.items():
                span = nested.slots[0].spans[name]
                own = copies[:, span.start : span.stop].view(len(copies), *span.shape)
                total[span.start : span.stop] = (own.double() * share).sum(dim=0).flatten()
            sums.flat.index_add_(0, nested.position, total)
        sums.contributions = [order.contribution for order in orders]
        return sums


def _answer(sums: PartialSums, trained: Sequence[tuple[Slot, Order, Tensor]]) -> Answer | Diverged:
    """A run's sums and what its devices report, from slots, orders and results."""
    try:
        return sums, [outcome for slot, order, own in trained for outcome in slot.stack.outcomes([order], own)]
    except Diverged as error:
        return error


@dataclass(frozen=True, eq=False)
class Nested:
    """Slots that train the same slice: their places in the round, where it lies in the model, how their rows count."""

    places: Sequence[int]
    slots: Sequence[Slot]
    position: Tensor
    shares: Mapping[str, Tensor]


def spans_of(model: nn.Module) -> dict[str, Span]:
    """The parameters of a model one after another."""
    convolutions = (nn.Conv1d, nn.Conv2d)
    kernels = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, convolutions)}
    spans, start = {}, 0
    for name, parameter in model.named_parameters():
        last = name in kernels
        spans[name] = Span(start, start + parameter.numel(), _rows(parameter, last).shape, last)
        start += parameter.numel()
    return spans


def _rows(tensor: Tensor, last: bool) -> Tensor:
    return tensor.movedim(1, -1) if last else tensor


class Slot:
    """A stack of one, its weights in one flat buffer, and its recorded steps: with a Fisher measurement, and without.

    `spans` says which part of the buffer is which parameter. Steps are recorded into the memory of a `pool`; of a
    `lane`, if that is given, whose slots are never replayed at the same time.
    """

    def __init__(
        self, task: Task, training: Training, precision: Precision, order: Order, pool: Pool, lane: int | None
    ) -> None:
        self.lane = lane
        model = task.build(Shape.of(order.plan, order.width)).to(task.train.inputs.device)
        fuse(model, task.train.inputs.device)
        self.spans = spans_of(model)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self.flat = torch.cat([_rows(weights[name], span.last).flatten() for name, span in self.spans.items()])
        for name, parameter in model.named_parameters():
            span = self.spans[name]
            view = self.flat[span.start : span.stop].view(span.shape)
            parameter.data = view.movedim(-1, 1) if span.last else view
        self.stack = Stack(task, training, order, 1, precision, model)
        self._aim = Aim(task.axes, order.plan, self.spans, self.flat.device)
        # Only one of the two is replayed at a time, so they share their memory.
        self._plain = self._record(order, measured=False, pool=pool)
        self._measured = self._record(order, measured=True, pool=pool) if order.fisher_steps else self._plain

    def aim(self, plan: Plan) -> Tensor:
        """Where each number of the flat buffer lies among all numbers of the model."""
        return self._aim.at(plan)

    def _record(self, order: Order, measured: bool, pool: Pool) -> torch.cuda.CUDAGraph:
        return recorded(lambda: self.stack.advance(measured), lambda: self.stack.begin([order]), pool)

    def replay(self, measured: bool) -> None:
        (self._measured if measured else self._plain).replay()


class Aim:
    """Where the numbers of a slot lie in the model: worked out on the GPU, anew when the plan is another.

    The place of a coordinate (i, j, ...) of a parameter is its start + i x stride + j x stride' + ...; one recorded
    graph adds these up for all coordinates, from the kept positions of every dimension.
    """

    def __init__(self, axes: Axes, plan: Plan, spans: Mapping[str, Span], place: torch.device) -> None:
        self._axes = axes
        self._starts = dict(zip(axes.shapes, accumulate(map(prod, axes.shapes.values()), initial=0), strict=False))
        self._spans, self._place = spans, place
        self._inbox = Inbox({key: (term.shape, torch.int64) for key, term in self._terms(plan).items()}, place)
        self._position = torch.zeros(0, dtype=torch.int64, device=place)
        self._plan: tuple[bytes, ...] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def at(self, plan: Plan) -> Tensor:
        """The positions, valid until the next call."""
        key = plan_key(self._axes, plan)
        if key != self._plan:
            for name, term in self._terms(plan).items():
                self._inbox.here[name][...] = term
            self._inbox.send()
            self._work_out()
            self._plan = key
        return self._position

    def _work_out(self) -> None:
        """Most slots are never aimed, and those of nested slices once, so memory and a recording come when needed."""
        if self._graph is not None:
            self._graph.replay()
        elif self._plan is not None:
            self._graph = recorded(self._add_up)
        else:
            count = max(span.stop for span in self._spans.values())
            self._position = torch.zeros(count, dtype=torch.int64, device=self._place)
            self._add_up()

    def _terms(self, plan: Plan) -> dict[str, NDArray[np.int64]]:
        """Of every dimension of every parameter, what its kept positions add to the place of a coordinate."""
        terms = {}
        for name, kept in self._axes.parameter_positions(plan).items():
            shape = self._axes.shapes[name]
            for d, positions in enumerate(kept):
                terms[f"{name}/{d}"] = positions * prod(shape[d + 1 :]) + (self._starts[name] if d == 0 else 0)
        return terms

    def _add_up(self) -> None:
        for name, span in self._spans.items():
            rank, own = len(span.shape), self._position[span.start : span.stop]
            if rank == 0:
                own.fill_(self._starts[name])
                continue
            terms = [self._inbox.there[f"{name}/{d}"] for d in range(rank)]
            places = sum(term.view([-1 if e == d else 1 for e in range(rank)]) for d, term in enumerate(terms))
            own.view(span.shape).copy_(_rows(torch.as_tensor(places), span.last))


@cache
def _recording_stream() -> torch.cuda.Stream:
    """One for all, since freed memory serves only the stream that it was taken on."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def recorded(
    work: Callable[[], None],
    prepare: Callable[[], None] = lambda: None,
    pool: Pool | None = None,
) -> torch.cuda.CUDAGraph:
    """A graph of what some work starts on the GPU, in memory of its own or in that of a pool.

    The work is prepared and done once before, in which libraries choose their algorithms, and then prepared again.
    """
    stream = _recording_stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        prepare()
        work()
        prepare()
        torch.cuda.synchronize()
        # A recorded product keeps the address of its scratch memory, and slots run side by side: each its own.
        torch._C._cuda_clearCublasWorkspaces()
        graph.capture_begin(pool)
        work()
        graph.capture_end()
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
