"""Accuracy of the global model, with batch-norm statistics gathered anew from a few samples of every device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.errors import require, require_one_of
from whalefl.rng import stream
from whalefl.subnet.slicing import Weights
from whalefl.tasks.layers import StaticBatchNorm
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task

_CALIBRATION = 1000  # samples in one forward pass that gathers statistics
_SCORING = {"cpu": 100, "cuda": 5000}  # samples in one forward pass that scores: as many as a cache or a GPU likes
_LOGITS = 2**27  # logits in one forward pass, which for texts are the larger limit


@dataclass(frozen=True)
class EvaluationSettings:
    """Evaluate after every `every`-th round, with statistics over at most `calibration` samples of each device.

    `on` is what is scored: the "test" set, or, for choosing settings, a "validation" tenth of the training set, which
    is then not trained on.
    """

    every: int = 1
    calibration: int = 500
    on: Literal["test", "validation"] = "test"

    def __post_init__(self) -> None:
        require(self.every >= 1, "every", self.every, "at least 1")
        require(self.calibration >= 1, "calibration", self.calibration, "at least 1")
        require_one_of("on", self.on, ("test", "validation"))


@dataclass(frozen=True)
class Score:
    """A model on the whole test set.

    For texts the accuracy is that on masked positions, and `more` holds the one on all positions and the perplexity.
    """

    accuracy: float
    loss: float
    more: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares of each channel that enters a batch norm; those of several parties add up."""

    count: int
    total: Tensor
    squares: Tensor

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        mean = self.total / self.count
        variance = (self.squares / self.count - mean**2).clamp(min=0)
        return mean.float(), variance.float()


def calibration_indices(settings: EvaluationSettings, shares: Sequence[Share], seed: int) -> NDArray[np.int64]:
    """The samples over which statistics are taken: some of every device, shuffled so that all batches are mixed."""
    chosen = [
        stream(seed, "calibration", device).permutation(share.indices)[: settings.calibration]
        for device, share in enumerate(shares)
    ]
    return stream(seed, "calibration").permutation(np.concatenate(chosen))


def evaluate(task: Task, model: nn.Module, weights: Weights, calibration: NDArray[np.int64]) -> Score:
    """Load the weights (of the whole model, or of a slice into a model of its shape), gather statistics, score."""
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
        samples = calibration_samples(task, calibration)
        gather_statistics(model, lambda: _chunks(task, samples, _CALIBRATION))
        return score(task, model)


def calibration_samples(task: Task, calibration: NDArray[np.int64]) -> Tensor:
    """Stored training inputs to take statistics over, changed at random as in training, the same way every time.

    What a model learnt, it learnt under the statistics of changed inputs; those of the unchanged ones cost accuracy.
    """
    place = task.train.inputs.device
    samples = task.train.inputs[torch.from_numpy(calibration).to(place)]
    if task.augment is None:
        return samples
    uniforms = stream(0, "calibration augmentation").random((len(calibration), task.augment.draws), dtype=np.float32)
    return task.augment.apply(samples, torch.from_numpy(uniforms).to(place))


def score(task: Task, model: nn.Module) -> Score:
    """A model with its weights and statistics in place on the whole test set, unmasked labels, no dropout."""
    model.eval()
    device, start = task.test.inputs.device, 0
    totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=device))
    with torch.no_grad():
        for inputs in _chunks(task, task.test.inputs, _SCORING.get(device.type, _CALIBRATION)):
            targets = task.test.targets[start : start + len(inputs)].flatten()
            start += len(inputs)
            logits = model(inputs).flatten(0, -2)
            right = logits.argmax(dim=-1) == targets
            totals["loss"] += F.cross_entropy(logits, targets, reduction="sum")
            totals["right"] += right.sum()
            if task.masked is not None:
                hidden = task.masked(inputs).flatten()
                totals["hidden"] += hidden.sum()
                totals["hidden right"] += (right & hidden).sum()
    count = task.test.targets.numel()
    loss, everywhere = float(totals["loss"]) / count, float(totals["right"]) / count
    if task.masked is None:
        return Score(everywhere, loss)
    hidden_accuracy = float(totals["hidden right"] / totals["hidden"].clamp(min=1))
    return Score(hidden_accuracy, loss, {"accuracy_all": everywhere, "perplexity": exp(min(loss, 700.0))})


def gather_statistics(model: nn.Module, batches: Callable[[], Iterator[Tensor]], passes: int = 1) -> None:
    """Set every batch norm's statistics to those of the inputs it sees over all batches.

    In the first pass each batch is normalised by its own statistics, which for one batch, or for batches that are
    mixed alike, are those of the union. Every further pass normalises by the pooled statistics of the pass before,
    after which one more layer is exact: as many passes as there are batch norms make unlike batches equal to their
    union.
    """
    norms = batch_norms(model)
    if not norms:
        return
    for _, norm in norms:
        norm.statistics = None
    for _ in range(passes):
        merged: dict[str, Moments] = {}
        for inputs in batches():
            for name, moments in observed_moments(model, inputs).items():
                merged[name] = merged[name] + moments if name in merged else moments
        for name, norm in norms:
            norm.statistics = merged[name].statistics()


def observed_moments(model: nn.Module, inputs: Tensor) -> dict[str, Moments]:
    """The moments of what enters every batch norm of the model in one forward pass."""
    seen: dict[str, Moments] = {}

    def observer(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def observe(_norm: nn.Module, args: tuple[Tensor]) -> None:
            x = args[0]
            variance, mean = torch.var_mean(x, dim=[d for d in range(x.ndim) if d != 1], correction=0)
            count, mean = x.numel() // x.shape[1], mean.double()
            seen[name] = Moments(count, count * mean, count * (variance.double() + mean**2))

        return observe

    hooks = [norm.register_forward_pre_hook(observer(name)) for name, norm in batch_norms(model)]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def batch_norms(model: nn.Module) -> list[tuple[str, StaticBatchNorm]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, StaticBatchNorm)]


def _chunks(task: Task, inputs: Tensor, most: int) -> Iterator[Tensor]:
    """The prepared inputs in pieces of at most so many samples, whose logits fit into memory."""
    predictions = task.test.targets[0].numel()
    size = max(1, min(most, _LOGITS // (predictions * task.classes)))
    for start in range(0, len(inputs), size):
        yield task.prepare(inputs[start : start + size])
