"""Accuracy of the global model, with batch-norm statistics gathered anew from a few samples of every device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whalefl.errors import WhaleflError, require, require_one_of
from whalefl.federation.logits import training_logits
from whalefl.rng import stream
from whalefl.subnet.slicing import Weights
from whalefl.tasks.layers import Observer, StaticBatchNorm
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task

_CALIBRATION = {"cpu": 250, "cuda": 5000}  # samples in one forward pass that gathers statistics
_SCORING = {"cpu": 100, "cuda": 5000}  # samples in one forward pass that scores: as many as a cache or a GPU likes
_LOGITS = {"cpu": 2**27, "cuda": 2**29}  # logits in one forward pass, which for texts are the larger limit


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
    load_weights(model, weights)
    pieces = calibration_pieces(task, calibration)
    gather_statistics(model, lambda: (calibration_inputs(task, calibration, piece) for piece in pieces))
    return score(task, model)


@torch.no_grad()
def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model that is to be evaluated; whatever statistics it had were not theirs."""
    model.eval()
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    for _, norm in batch_norms(model):
        norm.statistics = None


def calibration_pieces(task: Task, calibration: NDArray[np.int64]) -> list[slice]:
    """The parts of the calibration samples that go through a model in one pass each."""
    return _pieces(task, len(calibration), _CALIBRATION[task.train.inputs.device.type])


def calibration_inputs(task: Task, calibration: NDArray[np.int64], piece: slice) -> Tensor:
    """Training inputs to take statistics over, changed at random as in training, the same way every time.

    What a model learnt, it learnt under the statistics of changed inputs; those of the unchanged ones cost accuracy.
    """
    place = task.train.inputs.device
    samples = task.train.inputs[torch.from_numpy(calibration[piece]).to(place)]
    if task.augment is not None:
        shape = (len(calibration), task.augment.draws)
        uniforms = stream(0, "calibration augmentation").random(shape, dtype=np.float32)[piece]
        samples = task.augment.apply(samples, torch.from_numpy(uniforms).to(place))
    return task.prepare(samples)


def score(task: Task, model: nn.Module) -> Score:
    """A model with its weights and statistics in place on the whole test set, unmasked labels, no dropout."""
    return score_of(task, (count(task, model, piece) for piece in scored_pieces(task)))


def scored_pieces(task: Task) -> list[slice]:
    """The parts of the test set that go through a model in one pass each."""
    return _pieces(task, len(task.test), _SCORING[task.test.inputs.device.type])


Totals = dict[str, Tensor]
"""What adds up over test examples: losses and right predictions, for texts also those on masked positions."""


@torch.no_grad()
def count(task: Task, model: nn.Module, piece: slice) -> Totals:
    """The totals of a part of the test set."""
    model.eval()
    inputs, targets = task.prepare(task.test.inputs[piece]), task.test.targets[piece].flatten()
    logits = model(inputs).flatten(0, -2)
    right = logits.argmax(dim=-1) == targets
    totals = {"loss": training_logits(logits, None).losses(targets).sum(), "right": right.sum()}
    if task.masked is not None:
        hidden = task.masked(inputs).flatten()
        totals |= {"hidden": hidden.sum(), "hidden right": (right & hidden).sum()}
    return totals


def score_of(task: Task, parts: Iterable[Totals]) -> Score:
    """The score that the totals of all parts make, summed in their order."""
    device = task.test.inputs.device
    sums: Totals = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=device))
    for totals in parts:
        for name, total in totals.items():
            sums[name] += total
    predictions = task.test.targets.numel()
    loss, everywhere = float(sums["loss"]) / predictions, float(sums["right"]) / predictions
    if task.masked is None:
        return Score(everywhere, loss)
    hidden_accuracy = float(sums["hidden right"] / sums["hidden"].clamp(min=1))
    return Score(hidden_accuracy, loss, {"accuracy_all": everywhere, "perplexity": exp(min(loss, 700.0))})


def gather_statistics(model: nn.Module, batches: Callable[[], Iterable[Tensor]], passes: int = 1) -> None:
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
        settle(model, pooled(observed_moments(model, inputs) for inputs in batches()))


def pooled(parts: Iterable[Mapping[str, Moments]]) -> dict[str, Moments]:
    """The moments of all parts together, summed in their order."""
    merged: dict[str, Moments] = {}
    for part in parts:
        for name, moments in part.items():
            merged[name] = merged[name] + moments if name in merged else moments
    return merged


def settle(model: nn.Module, moments: Mapping[str, Moments]) -> None:
    """Let every batch norm normalise by these moments."""
    for name, norm in batch_norms(model):
        if name not in moments:
            raise WhaleflError(f"batch norm {name} saw no input; its forward must call `observe`, or it must go")
        norm.statistics = moments[name].statistics()


def observed_moments(model: nn.Module, inputs: Tensor) -> dict[str, Moments]:
    """The moments of what enters every batch norm of the model in one forward pass.

    A norm without statistics borrows those observed, which are the batch's own, so that they are computed once.
    """
    seen: dict[str, Moments] = {}
    norms = batch_norms(model)
    before = [norm.statistics for _, norm in norms]

    def observer(name: str, norm: StaticBatchNorm) -> Observer:
        def observe(count: int, mean: Tensor, variance: Tensor) -> None:
            if norm.statistics is None:
                norm.statistics = mean, variance
            mean = mean.double()
            seen[name] = Moments(count, count * mean, count * (variance.double() + mean**2))

        return observe

    for name, norm in norms:
        norm.observer = observer(name, norm)
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for (_, norm), statistics in zip(norms, before, strict=True):
            norm.observer, norm.statistics = None, statistics
    return seen


def batch_norms(model: nn.Module) -> list[tuple[str, StaticBatchNorm]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, StaticBatchNorm)]


def _pieces(task: Task, examples: int, most: int) -> list[slice]:
    """So many examples in pieces of at most `most`, whose logits fit into memory."""
    predictions = task.test.targets[0].numel()
    size = max(1, min(most, _LOGITS[task.test.inputs.device.type] // (predictions * task.classes)))
    return [slice(start, start + size) for start in range(0, examples, size)]
