"""Batch-norm statistics: equal to those of the union of all samples, whoever holds them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from whalefl.federation.evaluation import (
    EvaluationSettings,
    calibration_indices,
    evaluate,
    gather_statistics,
    observed_moments,
)
from whalefl.tasks.layers import Pool, Scaler, StaticBatchNorm, mean_and_variance_in_blocks, norm_pool_relu
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task


@pytest.fixture(autouse=True)
def same_weights_every_time() -> None:
    torch.manual_seed(0)


def norms(model: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    found = [m.statistics for m in model.modules() if isinstance(m, StaticBatchNorm)]
    return [statistics for statistics in found if statistics is not None]


def test_statistics_of_one_batch_are_those_of_the_union(corners: Task) -> None:
    model = corners.build(corners.full).eval()
    union = corners.train.inputs
    gather_statistics(model, lambda: iter([union]))
    with torch.no_grad():
        first = torch.nn.functional.conv2d(union, model.blocks[0].conv.weight, padding=1)
    mean, variance = norms(model)[0]
    torch.testing.assert_close(mean, first.mean((0, 2, 3)))
    torch.testing.assert_close(variance, first.var((0, 2, 3), unbiased=False))


def test_devices_with_unlike_data_reach_the_unions_statistics_after_as_many_passes_as_layers(corners: Task) -> None:
    reference, merged = corners.build(corners.full).eval(), corners.build(corners.full).eval()
    merged.load_state_dict(reference.state_dict())
    by_class = [corners.train.inputs[corners.train.targets == label] for label in range(4)]
    gather_statistics(reference, lambda: iter([torch.cat(by_class)]))

    def parts() -> Iterator[Tensor]:
        yield from by_class

    gather_statistics(merged, parts, passes=1)
    one_pass = [float(((a[1] - b[1]) / a[1]).abs().max()) for a, b in zip(norms(reference), norms(merged), strict=True)]
    gather_statistics(merged, parts, passes=2)
    for ours, union in zip(norms(merged), norms(reference), strict=True):
        torch.testing.assert_close(ours[0], union[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours[1], union[1], rtol=1e-4, atol=1e-6)
    assert one_pass[1] > 0.05  # so the second pass was needed


def test_moments_add_up(corners: Task) -> None:
    model = corners.build(corners.full).eval()
    gather_statistics(model, lambda: iter([corners.train.inputs]))
    halves = [observed_moments(model, corners.train.inputs[i::2]) for i in range(2)]
    whole = observed_moments(model, corners.train.inputs)
    for name, moments in whole.items():
        merged = halves[0][name] + halves[1][name]
        assert merged.count == moments.count
        # The means behind them were taken in float32.
        torch.testing.assert_close(merged.total, moments.total, rtol=1e-5, atol=1e-5 * moments.count)
        torch.testing.assert_close(merged.squares, moments.squares, rtol=1e-5, atol=1e-5 * moments.count)


def test_evaluation_scores_the_whole_test_set_whatever_was_evaluated_before(corners: Task) -> None:
    model = corners.build(corners.full)
    weights = corners.initial_weights(0)
    everything = np.arange(len(corners.train))
    first = evaluate(corners, model, weights, everything)
    evaluate(corners, model, corners.initial_weights(1), everything)
    assert evaluate(corners, model, weights, everything) == first
    assert first.accuracy * len(corners.test) == round(first.accuracy * len(corners.test))


def test_calibration_takes_at_most_so_many_of_each_device() -> None:
    shares = [Share(np.arange(10), (0,)), Share(np.arange(100, 103), (1,))]
    chosen = calibration_indices(EvaluationSettings(calibration=5), shares, 0)
    assert sum(chosen < 10) == 5 and sum(chosen >= 100) == 3
    assert len(set(chosen)) == 8


def test_the_scaler_divides_by_the_width() -> None:
    x = torch.ones(2, 3)
    assert Scaler(0.25)(x).tolist() == (4 * x).tolist()
    assert Scaler(1.0)(x) is x


@given(
    examples=st.integers(1, 40),
    channels=st.integers(1, 9),
    side=st.integers(1, 5),
    mean=st.floats(-100, 100),
    block=st.integers(1, 200),
    last=st.booleans(),
)
def test_moments_taken_block_by_block_are_those_of_all(
    examples: int, channels: int, side: int, mean: float, block: int, last: bool
) -> None:
    x = torch.randn(examples, channels, side, side) + mean
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    found = mean_and_variance_in_blocks(x, block)
    variance, average = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(found, (average.float(), variance.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("signs", [1.0, -1.0])
@pytest.mark.parametrize("pool", [(1, 1), (2, 2), (1, 2)])
def test_pooling_before_or_after_the_norm_is_the_same_to_the_bit(pool: Pool, signs: float) -> None:
    norm, x = StaticBatchNorm(6).eval(), torch.randn(5, 6, 7, 7)
    norm.weight.data = torch.rand(6) * torch.tensor([1.0, 1.0, 1.0, 0.0, signs, signs])
    norm.bias.data = torch.randn(6)
    norm.statistics = torch.randn(6), torch.rand(6) + 0.1
    assert norm.keeps_order() == (signs > 0)
    after = torch.relu(torch.nn.functional.max_pool2d(norm(x), pool))
    assert torch.equal(norm_pool_relu(norm, x, pool), after)
