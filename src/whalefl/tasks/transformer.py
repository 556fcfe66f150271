"""The width-scalable Transformer encoder that guesses masked words.

Every head is kept at every width, and each keeps a share of its dimensions. A scaler stands after every layer whose
output feeds another one; the logits have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whalefl.errors import require
from whalefl.subnet.axes import Axes, Part, Segment
from whalefl.tasks.layers import Scaler
from whalefl.tasks.task import Shape

_ALIGNED = 64  # numbers: a line of the cache, in 16 bits


@dataclass(frozen=True)
class Sizes:
    """A Transformer at full width, for a vocabulary of `words` and sequences of at most `length` of them.

    The word after the last one, number `words`, is the mask.
    """

    words: int
    length: int = 64
    model: int = 256
    heads: int = 8
    hidden: int = 512
    layers: int = 4
    dropout: float = 0.2

    def __post_init__(self) -> None:
        require(self.model % self.heads == 0, "model", self.model, f"a multiple of the {self.heads} heads")


def _one_by_one(linears: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """What several linear layers make of the same inputs."""
    return [one(x) for one in linears]


def _in_one(linears: Sequence[nn.Linear], x: Tensor) -> Sequence[Tensor]:
    """The same by one product, which a GPU starts sooner than it starts several; it keeps a copy of all weights."""
    weight, bias = (torch.cat(parts) for parts in zip(*((one.weight, one.bias) for one in linears), strict=True))
    return torch.split(F.linear(x, weight, bias), [one.out_features for one in linears], dim=-1)


class Attention(nn.Module):
    """Every position looks at all others: softmax(Q K^T / sqrt(size of a head)) V, for each head."""

    def __init__(self, shape: Shape, sizes: Sizes, layer: int) -> None:
        super().__init__()
        model, self.heads = shape["model"], sizes.heads
        self.linear_q = nn.Linear(model, self.heads * shape[f"qk{layer}"])
        self.linear_k = nn.Linear(model, self.heads * shape[f"qk{layer}"])
        self.linear_v = nn.Linear(model, self.heads * shape[f"v{layer}"])
        self.linear_o = nn.Linear(self.heads * shape[f"v{layer}"], model)
        self.scaler = Scaler(shape.ratio)

    def forward(self, x: Tensor) -> Tensor:
        linears = (self.linear_q, self.linear_k, self.linear_v)
        q, k, v = (self._by_head(self.scaler(one)) for one in (_in_one if x.is_cuda else _one_by_one)(linears, x))
        looks = (q @ k.transpose(-2, -1) / sqrt(q.shape[-1])).softmax(dim=-1)
        return self.scaler(self.linear_o((looks @ v).transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor) -> Tensor:
        """(examples, positions, heads x size) -> (examples, heads, positions, size)."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Attention and two dense layers, each added to what came in and then normalised."""

    def __init__(self, shape: Shape, sizes: Sizes, layer: int) -> None:
        super().__init__()
        model, hidden = shape["model"], shape[f"hidden{layer}"]
        self.attention = Attention(shape, sizes, layer)
        self.norm1 = nn.LayerNorm(model)
        self.linear1 = nn.Linear(model, hidden)
        self.linear2 = nn.Linear(hidden, model)
        self.norm2 = nn.LayerNorm(model)
        self.scaler = Scaler(shape.ratio)
        self.gelu = nn.GELU()
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        hidden = self.dropout(self.gelu(self.scaler(self.linear1(x))))
        return self.norm2(x + self.dropout(self.scaler(self.linear2(hidden))))  # type: ignore[no-any-return]


class Decoder(nn.Linear):
    """A linear layer that gives every word of a vocabulary a logit.

    A GPU multiplies matrices fast only if all of their rows begin at multiples of 16 bytes, which so many words as
    there happen to be do not give: there rows get a little more room.
    """

    def forward(self, x: Tensor) -> Tensor:
        room = -self.out_features % _ALIGNED if x.is_cuda else 0
        if room == 0:
            return super().forward(x)
        half = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if half else x.dtype
        x, weight, bias = (tensor.to(dtype) for tensor in (x, self.weight, self.bias))
        return RoomyLinear.apply(x, weight, bias, room)  # type: ignore[no-any-return, no-untyped-call]


class RoomyLinear(torch.autograd.Function):
    """A linear layer whose outputs lie in rows with room for a few more numbers, and so may its gradient.

    Left to autograd, to leave the room out would be to copy all logits once more on the way back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, room: int) -> Tensor:
        roomy = F.pad(weight, (0, 0, 0, room))
        ctx.save_for_backward(x, roomy)
        ctx.room = room
        return F.linear(x, roomy, F.pad(bias, (0, room)))[..., : len(weight)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, roomy = ctx.saved_tensors
        words = slope.shape[-1]
        of_rows = with_room(slope.flatten(0, -2), ctx.room)
        of_weight, of_bias = of_rows.T @ x.flatten(0, -2), of_rows.sum(dim=0)
        return (of_rows @ roomy).view(x.shape), of_weight[:words], of_bias[:words], None


def with_room(rows: Tensor, room: int) -> Tensor:
    """The rows and so many zeros behind each: in place, where that much room lies there."""
    count, classes = rows.shape
    pitch, stored = classes + room, rows.untyped_storage().nbytes() // rows.itemsize
    if rows.stride() != (pitch, 1) or rows.storage_offset() + count * pitch > stored:
        return F.pad(rows, (0, room))
    roomy = rows.as_strided((count, pitch), (pitch, 1))
    roomy[:, classes:] = 0
    return roomy


class Transformer(nn.Module):
    """Words and where they stand, encoder layers, and a decoder that gives every word of the vocabulary a logit."""

    def __init__(self, shape: Shape, sizes: Sizes) -> None:
        super().__init__()
        model = shape["model"]
        self.words = nn.Embedding(sizes.words + 1, model)
        self.positions = nn.Embedding(sizes.length, model)
        self.scaler = Scaler(shape.ratio)
        self.norm = nn.LayerNorm(model)
        self.dropout = nn.Dropout(sizes.dropout)
        self.layers = nn.Sequential(*[Layer(shape, sizes, layer) for layer in range(1, sizes.layers + 1)])
        self.linear = nn.Linear(model, model)
        self.gelu = nn.GELU()
        self.last_norm = nn.LayerNorm(model)
        self.decoder = Decoder(model, sizes.words)
        # The norm that follows hides how large these are, but the larger they are the slower they turn.
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.scaler(self.words(tokens) + self.positions(places))
        x = self.layers(self.dropout(self.norm(x)))
        x = self.last_norm(self.gelu(self.scaler(self.linear(x))))
        return self.decoder(x)  # type: ignore[no-any-return]


def transformer_axes(sizes: Sizes) -> Axes:
    """The axes: one for the model's width, which all residual sums share, and three of its own for each layer."""
    axes = {"model": sizes.model}
    parameters: dict[str, Sequence[str | int | Part | Sequence[int]]] = {
        "words.weight": ([sizes.words, 1], "model"),
        "positions.weight": (sizes.length, "model"),
        **_norm("norm"),
        **_linear("linear", "model", "model"),
        **_norm("last_norm"),
        **_linear("decoder", sizes.words, "model"),
    }
    for layer in range(1, sizes.layers + 1):
        qk, v, hidden, prefix = f"qk{layer}", f"v{layer}", f"hidden{layer}", f"layers.{layer - 1}"
        axes |= {qk: sizes.model // sizes.heads, v: sizes.model // sizes.heads, hidden: sizes.hidden}
        by_head = {axis: Segment(axis, outer=sizes.heads) for axis in (qk, v)}
        parameters |= _linear(f"{prefix}.attention.linear_q", by_head[qk], "model")
        parameters |= _linear(f"{prefix}.attention.linear_k", by_head[qk], "model")
        parameters |= _linear(f"{prefix}.attention.linear_v", by_head[v], "model")
        parameters |= _linear(f"{prefix}.attention.linear_o", "model", by_head[v])
        parameters |= _norm(f"{prefix}.norm1") | _norm(f"{prefix}.norm2")
        parameters |= _linear(f"{prefix}.linear1", hidden, "model") | _linear(f"{prefix}.linear2", "model", hidden)
    return Axes.of(axes, parameters, {"words.weight": 0, "decoder.weight": 0, "decoder.bias": 0})


Declared = dict[str, Sequence[str | int | Part]]


def _linear(name: str, outputs: str | int | Part, inputs: str | int | Part) -> Declared:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> Declared:
    return {f"{name}.weight": ("model",), f"{name}.bias": ("model",)}
