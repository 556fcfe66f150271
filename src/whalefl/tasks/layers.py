"""The two layers that width-scalable models need beside torch's own: the scaler and static batch norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Scaler(nn.Module):
    """Divides by the share of the full width, so that slices of all widths feed the next layer values of one scale.

    At full width it does nothing, so the global model needs none.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return x if self.ratio == 1 else x / self.ratio


class StaticBatchNorm(nn.BatchNorm2d):
    """Batch norm without running statistics: batch statistics in training, gathered ones in evaluation.

    Running averages of slices of different widths cannot be merged. Instead `statistics` (mean, variance) are
    gathered anew for the global model before it is evaluated; while they are None the batch's own are used.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features, track_running_stats=False)
        self.statistics: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.statistics is None:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        mean, variance = self.statistics
        return F.batch_norm(x, mean, variance, self.weight, self.bias, training=False, eps=self.eps)
