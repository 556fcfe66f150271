"""Copies of weights in 16 bits for a model to compute with, beside those in 32 bits that are trained.

Autocast would make such a copy of every weight when it is used and cast every gradient back, two operations each.
Copies that stay are renewed all in one operation, and all gradients come back in one; the numbers are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whalefl.tasks.layers import Classifier

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, Classifier)


def compute_in_half(model: nn.Module) -> dict[Tensor, Tensor]:
    """Give the model's linear layers and convolutions copies of the weights they train; which weight has which copy.

    Convolutions of a single channel keep theirs: on a GPU they are an operation of our own, which casts nothing. So do
    frozen weights, which no step renews.
    """
    places = defaultdict[nn.Parameter, list[tuple[nn.Module, str]]](list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places[parameter].append((module, name))
    copies: dict[Tensor, Tensor] = {}
    for parameter, uses in places.items():
        if parameter.requires_grad and all(_multiplies(module) for module, _ in uses):
            copies[parameter] = nn.Parameter(parameter.detach().to(torch.bfloat16))
            for module, name in uses:
                setattr(module, name, copies[parameter])
    return copies


def _multiplies(module: nn.Module) -> bool:
    grey = isinstance(module, (nn.Conv1d, nn.Conv2d)) and module.in_channels == module.groups
    return isinstance(module, _PRODUCTS) and not grey


@torch.no_grad()
def renew(copies: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Set copies to what their weights are now; a weight without one stands for itself."""
    _copy_all([(copy, weight) for copy, weight in zip(copies, weights, strict=True) if copy is not weight])


def like(weights: Sequence[Tensor], found: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the precision of their weights, and laid out in memory as they are."""
    fitting = [
        gradient if _layout(gradient) == _layout(weight) else torch.empty_like(weight)
        for weight, gradient in zip(weights, found, strict=True)
    ]
    _copy_all([(own, gradient) for own, gradient in zip(fitting, found, strict=True) if own is not gradient])
    return fitting


def _layout(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return tensor.dtype, tensor.stride()


def _copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy each second into its first; one operation for those that are laid out alike."""
    for alike in (True, False):
        chosen = [pair for pair in pairs if (pair[0].stride() == pair[1].stride()) == alike]
        if chosen:
            torch._foreach_copy_([to for to, _ in chosen], [of for _, of in chosen])
