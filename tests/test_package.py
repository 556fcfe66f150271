"""What the package promises to export, and that its reference numbers come from its own models."""

from __future__ import annotations

import torch

import whalefl
from whalefl.fleet.devices import REFERENCE_FLOPS
from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.costs import level_costs
from whalefl.tasks.task import Examples, Task
from whalefl.values import Ladder


def test_exported_members() -> None:
    assert whalefl.__all__ == sorted(whalefl.__all__, key=lambda name: (name != "METHODS", name))
    for name in whalefl.__all__:
        assert getattr(whalefl, name) is not None


def test_the_device_curves_rest_on_the_flops_of_the_measured_cnn() -> None:
    axes, names = cnn_axes(1, (64, 128, 256, 512), 10)
    images = Examples(torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.int64))
    task = Task("cnn", axes, lambda shape: CNN(shape, 1, names, 10), images, images, 10, lambda x: x)
    ladder = Ladder()
    costs = {ladder.width(cost.level): cost for cost in level_costs(task, ladder)}
    assert {width: cost.flops for width, cost in costs.items()} == REFERENCE_FLOPS
    assert costs[1.0].parameters == axes.count == 1_556_874
