"""What devices do in a round: they train their slices on an order's mini-batches, and report."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from whalefl.federation.orders import Order, Outcome
from whalefl.federation.stacks import Stack
from whalefl.federation.training import Training
from whalefl.tasks.task import Task


def train_slice(task: Task, model: nn.Module, training: Training, order: Order) -> Outcome:
    """Train the slice of one device, already loaded into `model`, in place."""
    stack = Stack(task, training, order, model=model)
    stack.begin([order])
    return train_stack(stack, [order])[0]


def train_stack(stack: Stack, orders: Sequence[Order]) -> list[Outcome]:
    """Train the slices of a loaded stack, step by step; what is random in the model is seeded by the order."""
    with torch.random.fork_rng(devices=[stack.place] if stack.place.type == "cuda" else []):
        torch.manual_seed(orders[0].noise_seed)
        for step in range(len(orders[0].batches)):
            stack.advance(measured=step in orders[0].fisher_steps)
    return stack.outcomes(orders, stack.results.cpu())
