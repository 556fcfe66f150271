"""Many devices at once on one GPU: recorded training steps, replayed side by side.

Every device of a round trains in a slot: a stack of one whose step was recorded once as a CUDA graph. Slots of the
same shape are interchangeable, so any mix of levels is a choice of slots; and slots replay on streams of their own, so
the small kernels of many devices overlap. (Stacks of several, which help a processor, do not help here: grouped
convolutions take longer than the single ones side by side.) What a round needs is copied in before it starts and read
back once when it ends; in between the processor only starts replays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from whalefl.errors import require_one_of
from whalefl.federation.engine import use_precision
from whalefl.federation.orders import Order, Outcome
from whalefl.federation.stacks import PRECISIONS, Key, Precision, Stack, collect, load, stack_key
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.slicing import Weights
from whalefl.tasks.task import Task

_STREAMS = 20
_WARM_UP = 3  # steps before recording, in which libraries choose their algorithms

Placed = Sequence[tuple["Slot", Order]]


class GraphEngine:
    """Trains all devices of a round at once on the GPU that holds the task's data."""

    def __init__(self, task: Task, training: Training, precision: Precision = "tf32") -> None:
        require_one_of("precision", precision, PRECISIONS)
        self.task, self.training, self.precision = task, training, precision
        self._slots: dict[Key, list[Slot]] = defaultdict(list)
        self._streams = [torch.cuda.Stream() for _ in range(_STREAMS)]  # type: ignore[no-untyped-call]
        use_precision(precision)

    def train(self, weights: Weights, orders: Sequence[Order]) -> tuple[PartialSums, list[Outcome]]:
        # The widest take longest, so they start first.
        placed = self._place(sorted(orders, key=lambda order: (order.level, order.device)))
        loads = [(slot.stack, [order]) for slot, order in placed]
        torch.cuda.manual_seed(orders[0].noise_seed)
        load(self.task.axes, weights, loads)
        self._replay(placed)
        sums = PartialSums(self.task.axes, self.task.train.inputs.device)
        collect(sums, loads)
        results = torch.stack([stack.results for stack, _ in loads]).cpu()  # the only wait of a round
        outcomes = [stack.outcomes(own, row) for (stack, own), row in zip(loads, results, strict=True)]
        return sums, [outcome for of_one in outcomes for outcome in of_one]

    def _place(self, orders: Sequence[Order]) -> Placed:
        """A slot for each order; new ones are recorded where none is free."""
        taken: dict[Key, int] = defaultdict(int)
        placed = []
        for order in orders:
            key = stack_key(order)
            if taken[key] == len(self._slots[key]):
                stack = Stack(self.task, self.training, order, 1, self.precision)
                self._slots[key].append(Slot(stack, order))
            placed.append((self._slots[key][taken[key]], order))
            taken[key] += 1
        return placed

    def _replay(self, placed: Placed) -> None:
        main = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(main)
        for step in range(max(len(order.batches) for _, order in placed)):
            for number, (slot, order) in enumerate(placed):
                if step < len(order.batches):
                    with torch.cuda.stream(self._streams[number % _STREAMS]):
                        slot.replay(measured=step in order.fisher_steps)
        for stream in self._streams:
            main.wait_stream(stream)


class Slot:
    """A stack and its recorded steps: one that measures Fisher information, one that does not."""

    def __init__(self, stack: Stack, order: Order) -> None:
        self.stack = stack
        self._plain = self._record(order, measured=False)
        self._measured = self._record(order, measured=True) if order.fisher_steps else self._plain

    def _record(self, order: Order, measured: bool) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.stack.begin([order])
                self.stack.advance(measured)
            self.stack.begin([order])
            torch.cuda.synchronize()
            # A recorded product keeps the address of its scratch memory, and slots run side by side: each its own.
            torch._C._cuda_clearCublasWorkspaces()
            graph.capture_begin()
            self.stack.advance(measured)
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def replay(self, measured: bool) -> None:
        (self._measured if measured else self._plain).replay()
