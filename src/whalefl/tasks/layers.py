"""The layers that width-scalable models need beside torch's own: the scaler and norms that bear being cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whalefl.errors import require_one_of
from whalefl.native import compiler
from whalefl.native.norms import Statistics

Norm = Literal["batch", "group"]
NORMS: tuple[str, ...] = get_args(Norm)
Observer = Callable[[int, Tensor, Tensor], None]
Pool = tuple[int, int]
_BLOCK = 2**17  # numbers
_GROUP = 16  # channels
_EPS = 1e-5


class Scaler(nn.Module):
    """Divides by the share of the full width, so that slices of all widths feed the next layer values of one scale.

    At full width it does nothing, so the global model needs none.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return x if self.ratio == 1 else x / self.ratio


class StaticBatchNorm(nn.Module):
    """Batch norm without running statistics: batch statistics in training, gathered ones in evaluation.

    Running averages of slices of different widths cannot be merged. Instead `statistics` (mean, variance) are
    gathered anew for the global model before it is evaluated; while they are None the batch's own are used.
    Channels are dimension 1 of inputs of any rank. `ratio` is that of a scaler folded in, see `norm`. An `observer` is
    told, before anything is normalised, how many values each channel has, and their mean and variance.
    """

    def __init__(self, features: int, ratio: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = _EPS * ratio**2
        self.statistics: Statistics | None = None
        self.observer: Observer | None = None

    def observe(self, x: Tensor, fused: ModuleType | None = None) -> None:
        """Tell the observer, if there is one, of what is about to be normalised."""
        if self.observer is None:
            return
        if fused is not None:
            mean, variance = fused.mean_and_variance(x)
        elif x.is_cpu:
            mean, variance = mean_and_variance_in_blocks(x)
        else:
            variance, mean = torch.var_mean(x.float(), dim=[d for d in range(x.ndim) if d != 1], correction=0)
        self.observer(x.numel() // x.shape[1], mean, variance)

    def forward(self, x: Tensor) -> Tensor:
        self.observe(x)
        return self.normalised(x)

    def can_be_fused(self) -> bool:
        """Whether no gradient is asked for where statistics are known, which fused operations do not give."""
        return self.statistics is None or not torch.is_grad_enabled()

    def keeps_order(self) -> bool:
        """Whether a larger value stays at least as large, so that the largest of some may be taken before they are
        normalised."""
        return self.statistics is not None and bool((self.weight >= 0).all())

    def normalised(self, x: Tensor) -> Tensor:
        """The norm of what was observed."""
        if self.statistics is None:
            # Not F.batch_norm: on a GPU it takes a kernel that fills the device and keeps other streams waiting.
            return torch.native_batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps)[0]
        mean, variance = self.statistics
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


def mean_and_variance_in_blocks(x: Tensor, size: int = _BLOCK) -> Statistics:
    """Of every channel (dimension 1), in one pass over blocks of so many numbers, which a processor's cache holds.

    Sums of x - s and (x - s)^2 over all blocks, s being the mean of the first one, give the mean s + E[x - s] and the
    variance E[(x - s)^2] - E[x - s]^2. `torch.var_mean` takes ten to twenty times as long with channels last.
    """
    rows = x.movedim(1, -1).flatten(0, -2)
    blocks = torch.split(rows, max(1, size // rows.shape[1]))
    shift = blocks[0].float().mean(dim=0)
    total, squares = torch.zeros(2, rows.shape[1], dtype=torch.float64).unbind()
    for block in blocks:
        off = block.float() - shift
        total += off.sum(dim=0)
        squares += off.square_().sum(dim=0)
    off_mean = total / len(rows)
    return (shift + off_mean).float(), (squares / len(rows) - off_mean**2).clamp(min=0).float()


class Fusable:
    """A layer that can work by fused operations, those of the module that is named, see `fuse`."""

    fused_by: str | None = None  # not the module itself, with which a model could not be copied

    @property
    def fused(self) -> ModuleType | None:
        return None if self.fused_by is None else import_module(self.fused_by)


def norm_pool_relu(norm: nn.Module, x: Tensor, pool: Pool = (1, 1), fused: ModuleType | None = None) -> Tensor:
    """A norm, a max pool and ReLU; `fused` makes one operation of them where the norm is a batch norm.

    The pool comes before the ReLU, which gives the same (the largest of four values, or 0 if it is negative) for a
    quarter of the work.
    """
    if fused is not None and type(norm) is StaticBatchNorm and norm.can_be_fused() and fused.fits(x, pool):
        norm.observe(x, fused)
        return fused.norm_pool_relu(x, norm.weight, norm.bias, norm.eps, pool, norm.statistics)  # type: ignore[no-any-return]
    if type(norm) is StaticBatchNorm and x.is_cpu:  # a GPU would have to wait for the answer
        norm.observe(x)
        x = norm.normalised(_largest(x, pool)) if norm.keeps_order() else _largest(norm.normalised(x), pool)
    else:
        x = _largest(norm(x), pool)
    return F.relu(x, inplace=True)


def _largest(x: Tensor, pool: Pool) -> Tensor:
    return x if pool == (1, 1) else F.max_pool2d(x, pool)


FUSED = {"cuda": "whalefl.tasks.fused", "cpu": "whalefl.native.images"}
"""Which module has the fused operations for which kind of device."""


def fuse(model: nn.Module, place: torch.device) -> None:
    """Let the layers of a model there work by fused operations where they can."""
    name = FUSED.get(place.type)
    if name is None or not fused_operations_work(name, place.type):
        return
    for module in model.modules():
        if isinstance(module, Fusable):
            module.fused_by = name


@cache
def fused_operations_work(module: str, place: str = "cuda") -> bool:
    """Whether what compiles a module's operations is there (Triton on a GPU, else a C++ compiler), and its `try_out`,
    which says what that asks of them, raises nothing: the compiler may be too old, or the GPU."""
    on_gpu = place == "cuda"
    try:
        if (find_spec("triton") if on_gpu else compiler.command()) is None:
            return False
        with torch.inference_mode(False), torch.enable_grad():
            import_module(module).try_out(place)
    except Exception as error:  # whatever it is, torch's own operations do it too
        where = "GPU" if on_gpu else "processor"
        text = f"fused operations of {module} do not work on this {where} ({error}); torch's own are slower"
        warnings.warn(text, stacklevel=2)
        return False
    return True


def norm(kind: Norm, channels: int, ratio: float = 1.0, copies: int = 1) -> nn.Module:
    """A scaler and a norm over channels in one, with the parameters `weight` and `bias`; `copies` of them side by side.

    The scaler costs nothing: with mean m and variance v of x, (x/r - m/r) / sqrt(v/r^2 + eps) = (x - m) / sqrt(v +
    eps r^2).
    """
    require_one_of("norm", kind, NORMS)
    if kind == "batch":
        return StaticBatchNorm(copies * channels, ratio)
    return nn.GroupNorm(copies * groups(channels), copies * channels, eps=_EPS * ratio**2)


def groups(channels: int) -> int:
    """How many groups a group norm makes of so many channels: the most that are equal and of 16 channels or more.

    Groups of one size, rather than one number of them, so that a channel meets the same others at every width: where
    16 divides both, a prefix of the channels is the first groups of the whole layer. Fewer than 16 channels, or a
    number that cannot be divided so, are one group; smaller ones would lose what a global average pool looks at.
    """
    return next(count for count in range(max(1, channels // _GROUP), 0, -1) if channels % count == 0)


class Classifier(nn.Module):
    """`copies` of a linear layer side by side: (batch, copies x features) to (copies x batch, classes).

    Its parameters are those of the copies one after another; those of one copy are a plain linear layer's.
    """

    def __init__(self, features: int, classes: int, copies: int = 1) -> None:
        super().__init__()
        one = nn.Linear(features, classes)
        self.copies = copies
        self.weight = nn.Parameter(one.weight.detach().repeat(copies, 1))
        self.bias = nn.Parameter(one.bias.detach().repeat(copies))

    def forward(self, x: Tensor) -> Tensor:
        if self.copies == 1:
            return F.linear(x, self.weight, self.bias)
        features = x.view(len(x), self.copies, -1).transpose(0, 1)
        weight, bias = self.weight.view(self.copies, -1, features.shape[-1]), self.bias.view(self.copies, 1, -1)
        return torch.baddbmm(bias, features, weight.transpose(1, 2)).flatten(0, 1)


def side_by_side(x: Tensor, copies: int) -> Tensor:
    """(copies x batch, channels, ...) to (batch, copies x channels, ...): what grouped layers take."""
    return x if copies == 1 else x.view(copies, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
