"""Local training: SGD against torch's own, masked logits, and the Fisher estimator against the exact trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whalefl.errors import WhaleflError
from whalefl.federation.local_training import train_slice
from whalefl.federation.logits import PlainLogits, training_logits
from whalefl.federation.orders import Order, absent_classes
from whalefl.federation.steps import has_dropout, sampled_gradient, squared_norms
from whalefl.federation.training import Training
from whalefl.scheduling.fisher import fisher_trace
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.axes import Axes
from whalefl.subnet.plans import Prefix
from whalefl.tasks.layers import StaticBatchNorm
from whalefl.tasks.task import Shape, Task


def an_order(task: Task, fisher_steps: tuple[int, ...] = (), level: int = 1, batches: int = 6, batch: int = 8) -> Order:
    rng = np.random.default_rng(5)
    width = 0.5 ** (level - 1)
    return Order(
        device=0,
        level=level,
        width=width,
        lr=0.1,
        contribution=Contribution(Prefix().plan(task.axes, width, 0, 0, 0), (0, 1)),
        batches=rng.integers(0, len(task.train), (batches, batch)),
        augment_draws=None,
        noise_seed=0,
        labels=(0, 1),
        fisher_steps=fisher_steps,
        fisher_draws=rng.random((len(fisher_steps), batch), dtype=np.float32),
        unit_plan=Prefix().plan(task.axes, 1 / 16, 0, 0, 0),
    )


def loaded(task: Task, order: Order) -> nn.Module:
    torch.manual_seed(1)
    return task.build(Shape.of(order.plan, order.width))


@pytest.mark.parametrize(
    "training",
    [
        Training(lr=0.1),
        Training(lr=0.1, clip=0.0, momentum=0.0, weight_decay=0.0),
        Training(lr=0.5, clip=0.1, weight_decay=0.1),
    ],
)
def test_sgd_equals_torch_optim(corners: Task, training: Training) -> None:
    order = an_order(corners)
    ours, theirs = loaded(corners, order), loaded(corners, order)
    order = replace(order, lr=training.lr)
    train_slice(corners, ours, training, order)
    optimizer = torch.optim.SGD(
        theirs.parameters(), training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    owned = torch.tensor([1.0, 1.0, 0.0, 0.0])
    for indices in torch.from_numpy(order.batches):
        optimizer.zero_grad()
        F.cross_entropy(theirs(corners.train.inputs[indices]) * owned, corners.train.targets[indices]).backward()
        if training.clip:
            nn.utils.clip_grad_norm_(theirs.parameters(), training.clip)
        optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_measuring_fisher_does_not_change_training(corners: Task) -> None:
    with_fisher, without = an_order(corners, (0, 3)), an_order(corners)
    with_fisher = replace(with_fisher, batches=without.batches)
    a, b = loaded(corners, with_fisher), loaded(corners, without)
    measured = train_slice(corners, a, Training(), with_fisher)
    plain = train_slice(corners, b, Training(), without)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert measured.loss == plain.loss
    assert plain.fisher is None
    assert measured.fisher is not None and len(measured.fisher.trace) == 2


def test_the_unit_value_lies_inside_the_trace_and_equals_it_at_the_smallest_level(corners: Task) -> None:
    wide = train_slice(
        corners, loaded(corners, an_order(corners, (0, 2))), Training(), an_order(corners, (0, 2))
    ).fisher
    order = an_order(corners, (0, 2), level=5)
    narrow = train_slice(corners, loaded(corners, order), Training(), order).fisher
    assert wide is not None and narrow is not None
    assert all(0 < unit < trace for unit, trace in zip(wide.unit, wide.trace, strict=True))
    assert narrow.unit == narrow.trace
    assert narrow.parameters < wide.parameters == corners.axes.count


def test_masked_logits_are_zero_for_classes_a_device_does_not_own() -> None:
    output = torch.arange(8.0).reshape(2, 4)
    assert training_logits(output, torch.from_numpy(absent_classes(4, (1, 3)))[None]).rows.tolist() == [
        [0, 1, 0, 3],
        [0, 5, 0, 7],
    ]
    assert training_logits(output, None).rows.tolist() == output.tolist()
    assert training_logits(torch.zeros(2, 3, 4), None).rows.shape == (6, 4)


def test_sampled_labels_follow_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0]])
    draws = torch.linspace(0, 1, 100_001)[:-1]
    labels = PlainLogits(logits.expand(len(draws), 3)).labels(draws)
    shares = torch.bincount(labels, minlength=3) / len(draws)
    torch.testing.assert_close(shares, logits.softmax(-1)[0], atol=2e-5, rtol=0)
    assert PlainLogits(logits).labels(torch.tensor([1.0 - 1e-7])).item() == 2


def small_model(norm: bool) -> nn.Module:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Conv2d(1, 3, 3, padding=1)]
    if norm:
        layers.append(StaticBatchNorm(3))
    return nn.Sequential(*layers, nn.ReLU(), nn.AvgPool2d(6), nn.Flatten(), nn.Linear(3, 4))


def exact_trace(logits: Tensor, weights: list[Tensor]) -> float:
    """(1/n) sum_i sum_y p_i(y) ||gradient of loss_i(y)||^2: the definition, one sample and label at a time.

    With batch norm the gradient of one sample's loss flows through the batch's statistics.
    """
    total = 0.0
    probabilities = logits.detach().softmax(-1)
    for i in range(len(logits)):
        for y in range(logits.shape[1]):
            loss = F.cross_entropy(logits[i : i + 1], torch.tensor([y]))
            gradient = torch.autograd.grad(loss, weights, retain_graph=True)
            total += float(probabilities[i, y]) * float(squared_norms(gradient))
    return total / len(logits)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("labels", [None, (0, 2)])
def test_the_fisher_estimate_is_unbiased_for_the_exact_trace(
    corners: Task, norm: bool, labels: tuple[int, ...] | None
) -> None:
    model, draws = small_model(norm), 4000
    weights: list[Tensor] = list(model.parameters())
    logits = training_logits(
        model(corners.train.inputs[:8]), None if labels is None else torch.from_numpy(absent_classes(4, labels))[None]
    )
    rng = np.random.default_rng(0)
    estimates = [
        fisher_trace(
            float(squared_norms(sampled_gradient(logits, torch.tensor(rng.random(8), dtype=torch.float32), weights))), 8
        )
        for _ in range(draws)
    ]
    error = np.std(estimates) / np.sqrt(draws)
    # Four standard errors of the mean: an unbiased estimate fails this once in 16,000 times.
    assert abs(np.mean(estimates) - exact_trace(logits.rows, weights)) < 4 * error
    assert error < 0.03 * np.mean(estimates)


def test_the_true_label_gradient_is_not_an_estimate_of_the_trace(corners: Task) -> None:
    model = small_model(True)
    weights: list[Tensor] = list(model.parameters())
    logits = training_logits(model(corners.train.inputs[:8]), None)
    true = torch.autograd.grad(F.cross_entropy(logits.rows, corners.train.targets[:8]), weights, retain_graph=True)
    exact = exact_trace(logits.rows, weights)
    assert abs(fisher_trace(float(squared_norms(true)), 8) / exact - 1) > 0.3


def test_measuring_fewer_batches_leaves_the_expectation_alone(corners: Task) -> None:
    """Averaged over which mini-batches are drawn, two measured ones expect what all six do."""

    def mean_square(steps: tuple[int, ...], draws: np.ndarray) -> float:
        order = replace(an_order(corners, tuple(range(6))), fisher_steps=steps, fisher_draws=draws[list(steps)])
        entry = train_slice(corners, loaded(corners, order), Training(lr=0.1), order).fisher
        assert entry is not None
        return float(np.mean(np.square(entry.trace)))

    draws = np.random.default_rng(2).random((6, 8), dtype=np.float32)
    all_six = mean_square(tuple(range(6)), draws)
    pairs = [mean_square((i, j), draws) for i in range(6) for j in range(i + 1, 6)]
    assert np.mean(pairs) == pytest.approx(all_six, rel=1e-5)


def test_divergence_is_said_in_one_sentence(corners: Task) -> None:
    order = an_order(corners)
    with pytest.raises(WhaleflError, match="training diverged on device 0"):
        train_slice(corners, loaded(corners, order), Training(clip=0.0), replace(order, lr=1e30))


def test_the_rate_stays_or_falls_along_a_cosine() -> None:
    assert [Training(lr=0.2).rate(number, 10) for number in (1, 10)] == [0.2, 0.2]
    falling = [Training(lr=0.2, schedule="cosine").rate(number, 10) for number in (1, 6, 11)]
    assert falling == pytest.approx([0.2, 0.1, 0.0])


def test_every_kind_of_dropout_is_noticed() -> None:
    assert has_dropout(nn.Sequential(nn.AlphaDropout(0.1))) and has_dropout(nn.Sequential(nn.Dropout2d(0.1)))
    assert not has_dropout(nn.Sequential(nn.Dropout(0.0)))


def test_ordinary_batch_norm_is_refused(corners: Task) -> None:
    axes = Axes.of({"n": 4}, {"0.weight": ("n", 36), "0.bias": ("n",), "1.weight": ("n",), "1.bias": ("n",)})

    def build(shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Linear(36, shape["n"]), nn.BatchNorm1d(shape["n"]))

    with pytest.raises(WhaleflError, match="layer 1 is a BatchNorm1d"):
        replace(corners, axes=axes, build=build)


def test_epochs_become_batches() -> None:
    assert Training(iterations=7).batches(1000) == 7
    assert Training(epochs=2, batch=10).batches(100) == 20
    assert Training(epochs=0.01, batch=10).batches(100) == 1
