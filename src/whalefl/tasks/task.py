"""A task: examples to learn from and to be tested on, and a model that can be built at any width.

A model of your own needs two things: a function that builds it from the sizes of its axes, and those axes declared
beside it (see `whalefl.subnet.axes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whalefl.errors import WhaleflError, require, require_one_of
from whalefl.rng import stream
from whalefl.subnet.axes import Axes, Plan


@dataclass(frozen=True)
class Shape:
    """How large to build a model: the size of every axis, and the share of the full width that this is."""

    sizes: Mapping[str, int]
    ratio: float = 1.0

    def __getitem__(self, axis: str) -> int:
        require_one_of("axis", axis, self.sizes)
        return self.sizes[axis]

    @classmethod
    def of(cls, plan: Plan, ratio: float) -> Shape:
        return cls({axis: len(indices) for axis, indices in plan.items()}, ratio)


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and their targets, resident as tensors; images stay uint8 until they are used."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


def _check_examples(part: str, examples: Examples, classes: int) -> None:
    """Raise unless these are tensors of one length with labels of their task."""
    for name, given in (("inputs", examples.inputs), ("targets", examples.targets)):
        require(isinstance(given, Tensor), f"{part}.{name}", type(given).__name__, "a tensor")
    inputs, targets = len(examples.inputs), len(examples.targets)
    require(targets > 0, f"{part} examples", targets, "at least 1")
    require(inputs == targets, f"{part}.inputs", f"{inputs} examples", f"as many as there are targets, {targets}")
    dtype = examples.targets.dtype
    require(dtype == torch.int64, f"{part}.targets", str(dtype), "torch.int64, numbers of classes")
    least, most = int(examples.targets.min()), int(examples.targets.max())
    wanted = f"0 to {classes - 1}, numbers of {classes} classes"
    require(least >= 0 and most < classes, f"{part}.targets", f"{least} to {most}", wanted)


@dataclass(frozen=True)
class Augmentation:
    """A random change of training inputs: `apply(inputs, uniforms)` with `draws` uniform numbers for each example.

    The numbers are drawn before a round starts, so that how an engine groups its work changes nothing.
    """

    draws: int
    apply: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """Data and model.

    `prepare` turns stored inputs into what the model takes (for images: normalises them); `augment` changes stored
    inputs at random before that, in training only. The model answers with logits over `classes` in its last
    dimension, one row for each target. `masked` says, for texts, which predictions of these (prepared) test inputs
    were hidden from the model; `groups` names for each training example whom it comes from (a person, an article);
    `notes` is what results on this data must mention. `stack`, where there is one, builds several copies of the model
    side by side: each parameter is those of the copies one after another along its first dimension, and each copy is
    fed an equal part of the examples and answers for it. Engines train narrow slices so, many at a time.
    """

    name: str
    axes: Axes
    build: Callable[[Shape], nn.Module]
    train: Examples
    test: Examples
    classes: int
    prepare: Callable[[Tensor], Tensor]
    stack: Callable[[Shape, int], nn.Module] | None = None
    augment: Augmentation | None = None
    masked: Callable[[Tensor], Tensor] | None = None
    groups: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_examples("train", self.train, self.classes)
        _check_examples("test", self.test, self.classes)
        model = self.blank(self.full)
        self.axes.check({name: tuple(p.shape) for name, p in model.named_parameters()})
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                raise WhaleflError(
                    f"layer {name} is a {type(module).__name__}, whose running statistics slices cannot share; "
                    "it must be a whalefl.tasks.layers.StaticBatchNorm or a norm without statistics"
                )

    def training_inputs(self, indices: Tensor, uniforms: Tensor | None) -> Tensor:
        """What the model is given for these training examples."""
        inputs = self.train.inputs[indices]
        if self.augment is not None and uniforms is not None:
            inputs = self.augment.apply(inputs, uniforms)
        return self.prepare(inputs)

    def to(self, device: str) -> Task:
        """The same task with its examples on a device."""
        moved = [Examples(e.inputs.to(device), e.targets.to(device)) for e in (self.train, self.test)]
        return replace(self, train=moved[0], test=moved[1])

    @property
    def full(self) -> Shape:
        """The shape of the whole model."""
        return Shape(self.axes.sizes)

    def blank(self, shape: Shape) -> nn.Module:
        """The model without memory for its weights: for counting."""
        with torch.device("meta"):
            return self.build(shape)

    def initial_weights(self, seed: int) -> dict[str, Tensor]:
        """The global model before the first round."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, "weights").integers(np.iinfo(np.int64).max)))
            model = self.build(self.full)
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
