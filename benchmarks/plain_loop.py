"""The ordinary way to simulate federated learning: a yardstick, and for that reason never made faster.

One client after another. Each gets a new model object at its width, a DataLoader over its own Dataset and torch's own
SGD, on two threads; then sums and counts for each coordinate give the new global model, as in HeteroFL. Nothing is
slow on purpose: examples are normalised once, slices are views, and nothing is copied that need not be. It has a model
of its own, so that what makes the package's models fast does not make the yardstick fast: it trains CNNs only.

Fisher information is not measured, whatever the orders say.

`whalefl bench` measures it beside the engines; `PlainLoop(task, training).round(weights, orders)` is one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whalefl.federation.orders import Order
from whalefl.federation.training import Training
from whalefl.subnet.aggregation import counting_mask
from whalefl.subnet.slicing import plan_index
from whalefl.tasks.task import Task

THREADS = 2


class CNN(nn.Module):
    """Blocks of [conv 3, scaler, batch norm, ReLU, max pool 2], the last pool a global average, and a classifier."""

    def __init__(self, inputs: int, channels: Sequence[int], classes: int, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio
        self.blocks = nn.ModuleList()
        for before, after in pairwise([inputs, *channels]):
            layers = {"conv": nn.Conv2d(before, after, 3, padding=1)}
            self.blocks.append(nn.ModuleDict({**layers, "norm": nn.BatchNorm2d(after, track_running_stats=False)}))
        self.classifier = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block["conv"](F.max_pool2d(x, 2) if number else x)
            x = F.relu(block["norm"](x if self.ratio == 1 else x / self.ratio))
        return self.classifier(x.mean(dim=(2, 3)))


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
            return self.aggregate(weights, orders, [self.train_client(weights, order) for order in orders])
        finally:
            torch.set_num_threads(threads)

    def train_client(self, weights: Mapping[str, Tensor], order: Order) -> dict[str, Tensor]:
        """A client's weights after its mini-batches; the logits of classes it does not own are 0 in its loss."""
        model, settings = self.new_model(weights, order), self.training
        optimizer = torch.optim.SGD(
            model.parameters(), order.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        owned = torch.zeros(self.task.classes, device=self.device)
        owned[list(order.labels or range(self.task.classes))] = 1
        client = Client(self.inputs, self.targets, order)
        for inputs, targets in DataLoader(client, batch_size=order.batches.shape[1], shuffle=True):
            optimizer.zero_grad()
            logits = model(inputs.to(self.device)) * owned
            F.cross_entropy(logits, targets.to(self.device)).backward()
            if settings.clip > 0:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def new_model(self, weights: Mapping[str, Tensor], order: Order) -> nn.Module:
        """A new model at the client's width, holding its slice of the global weights."""
        channels = [len(kept) for kept in order.plan.values()]
        model = CNN(self.inputs.shape[1], channels, self.task.classes, order.width).to(self.device)
        index = plan_index(self.task.axes, order.plan)
        model.load_state_dict({name: weights[name][index[name]] for name in index})
        return model.train()

    def aggregate(
        self, weights: Mapping[str, Tensor], orders: Sequence[Order], slices: Sequence[Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The mean of every coordinate over the clients that trained it; those that nobody trained stay."""
        new = {}
        for name, old in weights.items():
            total, count = torch.zeros_like(old), torch.zeros_like(old)
            for order, trained in zip(orders, slices, strict=True):
                index = plan_index(self.task.axes, order.plan)[name]
                rows = counting_mask(self.task.axes, name, order.contribution)
                share = order.contribution.weight * (1.0 if rows is None else rows.to(self.device))
                total[index] += trained[name] * share
                count[index] += share
            new[name] = torch.where(count > 0, total / count.clamp(min=1e-12), old)
        return new
