"""Where a GPU slot's numbers lie in the model: plain arithmetic, the same on a processor."""

from __future__ import annotations

import torch
from torch import nn

from whalefl.federation.graphs import Aim, spans_of
from whalefl.subnet.aggregation import join_flat
from whalefl.subnet.axes import Axes
from whalefl.subnet.plans import Random
from whalefl.subnet.slicing import plan_index
from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.task import Shape


def check(axes: Axes, model: nn.Module) -> None:
    """What is picked from the whole model by position is the plan's slice, convolutions with their channels last."""
    plan = Random().plan(axes, 0.5, 1, 0, 0)
    weights = {name: torch.randn(shape) for name, shape in axes.shapes.items()}
    spans = spans_of(model)
    flat = join_flat(axes, weights)[Aim(axes, plan, spans, torch.device("cpu")).at(plan)]
    index = plan_index(axes, plan)
    for name, span in spans.items():
        found = flat[span.start : span.stop].view(span.shape)
        expected = weights[name][index[name]]
        assert torch.equal(found.movedim(-1, 1) if span.last else found, expected)


def test_slices_of_convolutions_and_of_other_weights_are_found() -> None:
    for dims in (1, 2):
        axes, names = cnn_axes(3, (8, 6), 5, dims=dims)
        plan = Random().plan(axes, 0.5, 1, 0, 0)
        model = CNN(Shape.of(plan, 0.5), 3, names, 5, dims=dims)
        assert spans_of(model)["blocks.0.conv.weight"].last and not spans_of(model)["classifier.weight"].last
        check(axes, model)


def test_only_convolutions_have_their_channels_last() -> None:
    """A weight of three dimensions may be anything else, and whoever reshapes it counts on its order."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.Parameter(torch.zeros(2, 4, 3))

    assert not spans_of(Heads())["heads"].last
    check(Axes.of({"size": 8}, {"heads": (2, "size", 3)}), Heads())
