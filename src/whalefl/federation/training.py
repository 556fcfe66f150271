"""The settings of local training."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from whalefl.errors import require, require_finite_number, require_one_of


@dataclass(frozen=True)
class Training:
    """Local training: K `iterations` a round, or `epochs` over the device's data; SGD with a fresh momentum each round.

    `clip` bounds the norm of the gradient (0: no bound). `schedule` lets the rate fall with the rounds, from `lr` to
    0 along half a cosine. With `masked_logits`, the logits of classes a device does not own are set to 0 in its loss.
    """

    iterations: int = 10
    epochs: float | None = None
    batch: int = 64
    lr: float = 0.01
    schedule: Literal["constant", "cosine"] = "constant"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    masked_logits: bool = True

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations", self.iterations, "at least 1")
        if self.epochs is not None:
            require_finite_number("epochs", self.epochs, above=0)
        require(self.batch >= 2, "batch", self.batch, "at least 2, since batch norm needs two samples")
        require_finite_number("lr", self.lr, above=0)
        require_one_of("schedule", self.schedule, ("constant", "cosine"))
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require_finite_number("weight_decay", self.weight_decay, least=0)
        require_finite_number("clip", self.clip, least=0)

    def batches(self, examples: int) -> int:
        """The mini-batches of a round on a device with this many examples."""
        if self.epochs is None:
            return self.iterations
        return max(1, round(self.epochs * examples / self.batch))

    def rate(self, number: int, rounds: int) -> float:
        """The learning rate of a round out of `rounds`."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + cos(pi * min(1.0, (number - 1) / rounds)))
