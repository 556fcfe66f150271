"""Steps that compute with kept copies in 16 bits against steps under autocast alone: the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from whalefl.federation.halves import compute_in_half, like
from whalefl.federation.steps import Batch, Learner, training_step
from whalefl.federation.training import Training
from whalefl.tasks.digits import digits
from whalefl.tasks.resnet import ResNet18, resnet18_axes
from whalefl.tasks.task import Examples, Shape, Task
from whalefl.tasks.transformer import RoomyLinear, Sizes, Transformer, transformer_axes, with_room


def words_task() -> Task:
    sizes = Sizes(words=50, length=8, model=32, heads=4, hidden=64, layers=2, dropout=0.0)
    tokens = torch.randint(50, (40, sizes.length), generator=torch.Generator().manual_seed(0))
    examples = Examples(tokens, tokens)
    build: Callable[[Shape], nn.Module] = lambda shape: Transformer(shape, sizes)  # noqa: E731
    return Task("words", transformer_axes(sizes), build, examples, examples, 50, lambda tokens: tokens)


def images_task() -> Task:
    source = torch.Generator().manual_seed(0)
    examples = Examples(torch.rand(40, 3, 16, 16, generator=source), torch.randint(10, (40,), generator=source))
    build: Callable[[Shape], nn.Module] = lambda shape: ResNet18(shape, 3, 10)  # noqa: E731
    return Task("images", resnet18_axes(3, 10), build, examples, examples, 10, lambda images: images)


def trained(task: Task, model: nn.Module, kept: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Three steps, two of them measured; the weights, and all measurements."""
    weights = list(model.parameters())
    halves = compute_in_half(model) if kept else {}
    assert bool(halves) == kept
    learner = Learner(
        model=model,
        copies=1,
        weights=[weight for weight in weights if weight.requires_grad],
        leaves=[halves.get(weight, weight) for weight in weights if weight.requires_grad],
        momentum=[torch.zeros_like(weight) for weight in weights if weight.requires_grad],
        absent=None,
        unit=[torch.ones_like(weight) for weight in weights if weight.requires_grad],
    )
    found: list[Tensor | None] = []
    source = torch.Generator().manual_seed(1)
    predictions = task.train.targets[:4].numel()
    for step in range(3):
        draws = torch.rand(1, predictions, generator=source) if step else None
        batch = Batch(torch.randint(40, (1, 4), generator=source), None, draws)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            measured = training_step(task, Training(lr=0.1), learner, batch, 0.1)
        found += [measured.loss, measured.whole, measured.unit]
    return [weight.detach() for weight in weights], found


@pytest.mark.parametrize("make", [words_task, images_task, digits])
def test_steps_with_kept_copies_are_those_of_autocast(make: Callable[[], Task]) -> None:
    task = make()
    torch.manual_seed(0)
    model = task.build(task.full)
    (ours, our_numbers), (theirs, their_numbers) = (trained(task, deepcopy(model), kept) for kept in (True, False))
    for mine, other, before in zip(ours, theirs, model.parameters(), strict=True):
        assert mine.dtype == torch.float32
        moved = (other - before).norm()
        assert (mine - other).norm() <= 1e-3 * moved + 1e-7
    for number, other_number in zip(our_numbers, their_numbers, strict=True):
        assert (number is None) == (other_number is None)
        if number is not None and other_number is not None:
            torch.testing.assert_close(number, other_number, rtol=1e-3, atol=1e-6)


def test_a_weight_that_an_embedding_shares_stays_whole() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(6, 4), "decoder": nn.Linear(4, 6), "first": nn.Linear(4, 4)})
    decoder, words, first = (model[name] for name in ("decoder", "words", "first"))
    decoder.weight = words.weight
    copies = compute_in_half(model)
    assert decoder.weight is words.weight and words.weight.dtype == torch.float32
    assert first.weight.dtype == decoder.bias.dtype == torch.bfloat16
    assert len(copies) == 3


def test_a_frozen_weight_has_no_copy_that_would_stay_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    copies = compute_in_half(model)
    assert model[0].weight.dtype == torch.float32 and model[0].weight not in copies
    assert len(copies) == 3


def test_gradients_are_laid_out_as_their_weights() -> None:
    weight = torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)
    found = [torch.rand(4, 3, 2, 2), torch.rand(5, dtype=torch.bfloat16), torch.rand(7)]
    fitting = like([weight, torch.zeros(5), torch.zeros(7)], found)
    assert [own.dtype for own in fitting] == [torch.float32] * 3
    assert fitting[0].stride() == weight.stride() and fitting[2] is found[2]
    assert all(torch.equal(own, gradient.float()) for own, gradient in zip(fitting, found, strict=True))


def test_a_linear_layer_with_room_behind_its_rows() -> None:
    source = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.rand(*size, generator=source, dtype=torch.float64) for size in ((2, 3, 4), (5, 4), (5,)))
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    slope = torch.rand(2, 3, 5, generator=source, dtype=torch.float64)
    roomy, plain = RoomyLinear.apply(*inputs, 3), nn.functional.linear(*inputs)
    assert roomy.stride() == (24, 8, 1)
    torch.testing.assert_close(roomy, plain)
    expected = torch.autograd.grad(plain, inputs, slope)
    in_place = torch.full((2, 3, 8), float("nan"), dtype=torch.float64)[..., :5].copy_(slope)
    for laid_out in (slope, in_place):
        found = torch.autograd.grad(roomy, inputs, laid_out, retain_graph=True)
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other)


def test_room_is_used_only_where_it_lies_behind_every_row() -> None:
    stored = torch.full((17,), float("nan"))
    whole, short = stored[:16].view(2, 8)[:, :5], stored.as_strided((2, 5), (8, 1), 2)
    stored[:5], stored[8:13] = 1.0, 2.0
    assert with_room(short, 3).data_ptr() != short.data_ptr()  # the last row's room would end behind the memory
    roomy = with_room(whole, 3)
    assert roomy.data_ptr() == whole.data_ptr()
    assert roomy.tolist() == [[1.0] * 5 + [0.0] * 3, [2.0] * 5 + [0.0] * 3]
