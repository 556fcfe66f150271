"""The ordinary way to simulate federated learning: a yardstick, and for that reason never made faster.

One client after another. Each gets a new model object at its width, a DataLoader over its own Dataset and torch's own
SGD, on two threads; then sums and counts for each coordinate give the new global model, as in HeteroFL. Nothing is
slow on purpose: examples are normalised once, slices are views, and nothing is copied that need not be.

Fisher information is not measured, and inputs are not augmented, whatever the orders say.

`whalefl bench` measures it beside the engines; `PlainLoop(task, training).round(weights, orders)` is one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whalefl.federation.local_training import Order
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import counting_mask
from whalefl.subnet.slicing import plan_index
from whalefl.tasks.task import Shape, Task

THREADS = 2


class Client(Dataset[tuple[Tensor, Tensor]]):
    """The examples of one client in one round, ready for the model."""

    def __init__(self, inputs: Tensor, targets: Tensor, order: Order) -> None:
        self.inputs, self.targets = inputs, targets
        self.indices = order.batches.flatten().tolist()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        index = self.indices[place]
        return self.inputs[index], self.targets[index]


class PlainLoop:
    """Trains rounds on the device that holds the task's data; the examples themselves wait in ordinary memory."""

    def __init__(self, task: Task, training: Training) -> None:
        self.task, self.training = task, training
        self.device = task.train.inputs.device
        self.inputs = task.prepare(task.train.inputs).cpu()
        self.targets = task.train.targets.cpu()

    def round(self, weights: Mapping[str, Tensor], orders: Sequence[Order]) -> dict[str, Tensor]:
        """The global model after the clients of these orders have trained."""
        threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            trained = [(order, self.train_client(weights, order)) for order in orders]
            return self.aggregate(weights, trained)
        finally:
            torch.set_num_threads(threads)

    def train_client(self, weights: Mapping[str, Tensor], order: Order) -> dict[str, Tensor]:
        """A client's weights after its mini-batches."""
        model = self.build(weights, order)
        optimizer = torch.optim.SGD(
            model.parameters(), order.lr, momentum=self.training.momentum, weight_decay=self.training.weight_decay
        )
        client = Client(self.inputs, self.targets, order)
        for inputs, targets in DataLoader(client, batch_size=order.batches.shape[1], shuffle=True):
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            optimizer.zero_grad()
            logits = model(inputs).flatten(0, -2)
            if order.labels is not None:
                logits = logits.masked_fill(self.absent(order.labels), 0.0)
            F.cross_entropy(logits, targets.flatten()).backward()
            if self.training.clip > 0:
                nn.utils.clip_grad_norm_(model.parameters(), self.training.clip)
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def build(self, weights: Mapping[str, Tensor], order: Order) -> nn.Module:
        """A new model at the client's width, holding its slice of the global weights."""
        model = self.task.build(Shape.of(order.plan, order.width)).to(self.device)
        index = plan_index(self.task.axes, order.plan)
        model.load_state_dict({name: weights[name][index[name]] for name in index})
        return model.train()

    def absent(self, labels: Sequence[int]) -> Tensor:
        """A mask of the classes a client does not own."""
        mask = torch.ones(self.task.classes, dtype=torch.bool, device=self.device)
        mask[list(labels)] = False
        return mask

    def aggregate(
        self, weights: Mapping[str, Tensor], trained: Sequence[tuple[Order, Mapping[str, Tensor]]]
    ) -> dict[str, Tensor]:
        """The mean of every coordinate over the clients that trained it; those that nobody trained stay."""
        new = {}
        for name, old in weights.items():
            total, count = torch.zeros_like(old), torch.zeros_like(old)
            for order, slice_ in trained:
                index = plan_index(self.task.axes, order.plan)[name]
                rows = counting_mask(self.task.axes, name, order.contribution)
                weight = order.contribution.weight
                share = weight if rows is None else weight * rows.to(self.device)
                total[index] += slice_[name] * share
                count[index] += share
            new[name] = torch.where(count > 0, total / count.clamp(min=1e-12), old)
        return new
