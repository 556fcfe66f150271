"""The width-scalable ResNet18 with pre-activation, for pictures of 32x32.

Every [scaler, norm, ReLU] stands before a convolution, and no convolution has a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from whalefl.subnet.axes import Axes, Part
from whalefl.tasks.layers import Classifier, Fusable, Norm, norm, norm_pool_relu, side_by_side
from whalefl.tasks.task import Shape

CHANNELS = (64, 128, 256, 512)
_BLOCKS = 2  # in each stage


@dataclass(frozen=True)
class Place:
    """A block in the network: the axes of its input, of the channels inside it and of its output, and its stride."""

    inputs: str
    inner: str
    outputs: str
    stride: int

    @property
    def projects(self) -> bool:
        """Whether the shortcut needs a convolution of its own."""
        return self.stride != 1 or self.inputs != self.outputs


def places() -> Iterator[Place]:
    """The blocks in order. All residual sums of a stage share its axis; the first stage's is that of the stem too."""
    before = "stage1"
    for stage in range(1, len(CHANNELS) + 1):
        for block in range(1, _BLOCKS + 1):
            outputs = f"stage{stage}"
            yield Place(before, f"stage{stage}block{block}", outputs, 2 if before != outputs else 1)
            before = outputs


class Block(nn.Module):
    """Twice [scaler, norm, ReLU, conv 3x3], plus the shortcut."""

    def __init__(self, shape: Shape, place: Place, kind: Norm, copies: int) -> None:
        super().__init__()
        inputs, inner, outputs = shape[place.inputs], shape[place.inner], shape[place.outputs]
        self.before1 = activation(shape, inputs, kind, copies)
        self.conv1 = convolution(inputs, inner, 3, copies, place.stride)
        self.before2 = activation(shape, inner, kind, copies)
        self.conv2 = convolution(inner, outputs, 3, copies)
        self.shortcut = convolution(inputs, outputs, 1, copies, place.stride) if place.projects else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.before1(x)
        kept = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(self.before2(self.conv1(active))) + kept  # type: ignore[no-any-return]


class Activation(Fusable, nn.Sequential):
    """A norm and ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return norm_pool_relu(self[0], x, fused=self.fused)


def activation(shape: Shape, channels: int, kind: Norm, copies: int) -> Activation:
    return Activation(norm(kind, channels, shape.ratio, copies))


def convolution(inputs: int, outputs: int, size: int, copies: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(copies * inputs, copies * outputs, size, stride, padding=size // 2, groups=copies, bias=False)


class ResNet18(nn.Module):
    """A convolution, four stages of two blocks, each stage but the first halving the picture, and a classifier.

    `copies` models stand side by side, each fed an equal part of the examples.
    """

    def __init__(self, shape: Shape, inputs: int, classes: int, kind: Norm = "batch", copies: int = 1) -> None:
        super().__init__()
        last = f"stage{len(CHANNELS)}"
        self.copies = copies
        self.stem = convolution(inputs, shape["stage1"], 3, copies)
        self.blocks = nn.Sequential(*[Block(shape, place, kind, copies) for place in places()])
        self.after = activation(shape, shape[last], kind, copies)
        self.classifier = Classifier(shape[last], classes, copies)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.blocks(self.stem(side_by_side(x, self.copies))))
        return self.classifier(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def resnet18_axes(inputs: int, classes: int) -> Axes:
    """The axes: one for each stage's residual sums, one for the channels inside each block."""
    sizes: dict[str, int] = {}
    parameters: dict[str, Sequence[str | int | Part]] = {"stem.weight": ("stage1", inputs, 3, 3)}
    for number, place in enumerate(places()):
        block = f"blocks.{number}"
        size = CHANNELS[number // _BLOCKS]
        sizes.update({place.outputs: size, place.inner: size})
        parameters[f"{block}.conv1.weight"] = (place.inner, place.inputs, 3, 3)
        parameters[f"{block}.conv2.weight"] = (place.outputs, place.inner, 3, 3)
        for name in ("weight", "bias"):
            parameters[f"{block}.before1.0.{name}"] = (place.inputs,)
            parameters[f"{block}.before2.0.{name}"] = (place.inner,)
        if place.projects:
            parameters[f"{block}.shortcut.weight"] = (place.outputs, place.inputs, 1, 1)
    last = f"stage{len(CHANNELS)}"
    parameters |= {"after.0.weight": (last,), "after.0.bias": (last,)}
    parameters |= {"classifier.weight": (classes, last), "classifier.bias": (classes,)}
    return Axes.of(sizes, parameters, {"classifier.weight": 0, "classifier.bias": 0})
