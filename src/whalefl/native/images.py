"""What layers do by kernels on a processor, and whether that comes out right."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whalefl.native.grey import fits_grey, grey_block
from whalefl.native.norms import fits, mean_and_variance, norm_pool_relu
from whalefl.native.tiny import convolve_tiny, fits_tiny

__all__ = [
    "convolve_tiny",
    "fits",
    "fits_grey",
    "fits_tiny",
    "grey_block",
    "mean_and_variance",
    "norm_pool_relu",
    "try_out",
]


def try_out(place: str) -> None:
    """Do each of them, forwards and back, beside torch's own, also in bfloat16, and see that what is no number shows;
    whatever is wrong is raised."""
    for dtype, off in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        with torch.autocast(place, dtype, enabled=dtype != torch.float32):
            for mine, other in _pairs(place, dtype):
                error, size = (float(t.detach().float().norm()) for t in (mine - other, other))
                if mine.dtype != other.dtype or not error <= off * size:
                    raise ArithmeticError(f"{mine.dtype} is off by {error / size:.1g} of its length")
    ones = torch.ones(2, dtype=torch.float32, device=place)
    nothing = ones[:, None, None].expand(2, 2, 4, 4) * torch.nan
    if not norm_pool_relu(nothing, ones, ones, 1e-5, (2, 2)).isnan().all():
        raise ArithmeticError("what is no number is lost")


def _pairs(place: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """What comes of little images and its gradients: ours, and torch's."""
    line = partial(torch.linspace, dtype=torch.float32, device=place)  # whatever torch's defaults are
    image = line(-1, 1, 2 * 5 * 6).sin().view(2, 1, 5, 6)
    kernel = line(1, -2, 16 * 9).cos().view(16, 1, 3, 3).requires_grad_()
    taps = line(1, 9, 8 * 16 * 9).cos().view(8, 16, 3, 3).requires_grad_()
    weight, bias = line(0.55, -1, 16).requires_grad_(), line(0.1, 0.1, 16).requires_grad_()
    convolved = torch.conv2d(image, kernel, padding=1)
    normal = torch.native_batch_norm(convolved, weight, bias, None, None, True, 0.0, 1e-5)[0]
    theirs = torch.relu(torch.max_pool2d(normal, 2))
    found: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]] = [
        (norm_pool_relu(convolved, weight, bias, 1e-5, (2, 2)), theirs, (kernel, weight, bias))
    ]
    if dtype == torch.float32:
        found.append((grey_block(image, kernel, weight, bias, 1e-5), theirs, (kernel, weight, bias)))
        found.append((convolve_tiny(theirs, taps), torch.conv2d(theirs, taps, padding=1), (kernel, taps)))
    pairs = [(mine, other) for mine, other, _ in found]
    for mine, other, leaves in found:
        slopes = (torch.autograd.grad(t.square().sum(), leaves, retain_graph=True) for t in (mine, other))
        pairs += zip(*slopes, strict=True)
    return pairs
