"""The fused GPU operations against torch's own in float64: on a GPU, or where there is none in Triton's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whalefl.federation.evaluation import gather_statistics
from whalefl.federation.logits import PlainLogits
from whalefl.tasks.cnn import CNN, cnn_axes
from whalefl.tasks.layers import Fusable, StaticBatchNorm, fused_operations_work
from whalefl.tasks.resnet import ResNet18, resnet18_axes
from whalefl.tasks.task import Shape

PLACE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton is not installed")

from whalefl.tasks import fused, word_losses  # noqa: E402
from whalefl.tasks.fused import grey_block, mean_and_variance, norm_pool_relu  # noqa: E402
from whalefl.tasks.word_losses import WordLogits  # noqa: E402


def drawn(*shapes: Sequence[int]) -> list[Tensor]:
    """Random tensors, the same ones every time."""
    source = torch.Generator().manual_seed(len(shapes[0]))
    return [torch.randn(*shape, generator=source).to(PLACE) for shape in shapes]


def agree(fused: Tensor, exact: Tensor, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Values and all gradients are those of float64, up to float32's rounding."""
    assert fused.is_contiguous(memory_format=torch.channels_last)
    assert (fused - exact).norm() < 1e-5 * exact.norm()
    (slope,) = drawn(exact.shape)
    found = torch.autograd.grad(fused, ours, slope)
    for mine, other in zip(found, torch.autograd.grad(exact, theirs, slope.double()), strict=True):
        assert (mine - other).norm() < 1e-5 * other.norm()


def trained(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The same values to be trained in float32 and in float64."""
    return [t.clone().requires_grad_() for t in tensors], [t.double().requires_grad_() for t in tensors]


@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((5, 8, 7, 7), (2, 2)),  # an odd edge, which the pool leaves out
        ((3, 20, 6, 5), (1, 1)),  # channels that are no power of two
        ((4, 70, 1, 9), (1, 2)),  # a signal; more channels than one program takes
        ((9, 4, 3, 3), (1, 1)),
    ],
)
def test_norm_pool_and_relu(shape: tuple[int, ...], pool: tuple[int, int]) -> None:
    x, weight, bias = drawn(shape, shape[1:2], shape[1:2])
    x = (3 + 2 * x).to(memory_format=torch.channels_last)
    x[0, :, :2, :2] = x[0, :, :1, :1]  # equals: the first of them is the largest
    ours, theirs = trained([x, weight, bias])
    normal = torch.native_batch_norm(*theirs, None, None, True, 0.0, 1e-3)[0]
    agree(norm_pool_relu(*ours, 1e-3, pool), F.relu(F.max_pool2d(normal, pool)), ours, theirs)


def test_sums_in_many_parts_come_out_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_TILES", 1)
    shape = (30, 70, 6, 6)
    x, weight, bias = drawn(shape, shape[1:2], shape[1:2])
    x = (3 + 2 * x).to(memory_format=torch.channels_last)
    ours, theirs = trained([x, weight, bias])
    normal = torch.native_batch_norm(*theirs, None, None, True, 0.0, 1e-3)[0]
    first = norm_pool_relu(*ours, 1e-3, (2, 2))
    agree(first, F.relu(F.max_pool2d(normal, (2, 2))), ours, theirs)
    again = [norm_pool_relu(*ours, 1e-3, (2, 2)) for _ in range(2)]
    slopes = [torch.autograd.grad(result.sum(), ours) for result in again]
    assert all(torch.equal(result, first) for result in again)
    assert all(torch.equal(mine, other) for mine, other in zip(*slopes, strict=True))


@pytest.mark.parametrize(("channels", "height", "width"), [(4, 8, 8), (20, 7, 5), (64, 12, 12), (96, 6, 6)])
def test_a_block_on_grey_images(channels: int, height: int, width: int) -> None:
    x, kernel, weight, bias = drawn((3, 1, height, width), (channels, 1, 3, 3), (channels,), (channels,))
    x[:, :, :4] = -0.4  # a background: all of its pixels are equal
    ours, theirs = trained([0.3 * kernel, weight, bias])
    convolved = F.conv2d(x.double(), theirs[0], padding=1)
    normal = torch.native_batch_norm(convolved, *theirs[1:], None, None, True, 0.0, 1e-5)[0]
    agree(grey_block(x, *ours, 1e-5), F.relu(F.max_pool2d(normal, 2)), ours, theirs)


def test_known_statistics() -> None:
    x, weight, bias = drawn((5, 20, 7, 6), (20,), (20,))
    x = (3 + 2 * x).to(memory_format=torch.channels_last)
    variance, mean = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    found = mean_and_variance(x)
    torch.testing.assert_close(found, (mean.float(), variance.float()))
    exact = F.batch_norm(x.double(), mean, variance, weight.double(), bias.double(), eps=1e-3)
    fused = norm_pool_relu(x, weight, bias, 1e-3, (2, 2), found)
    torch.testing.assert_close(fused, F.relu(F.max_pool2d(exact, 2)).float(), atol=1e-5, rtol=1e-5)

    image, kernel = drawn((3, 1, 7, 6), (20, 1, 3, 3))
    convolved = F.conv2d(image.double(), kernel.double(), padding=1).float()
    blocked = grey_block(image, kernel, weight, bias, 1e-3, found)
    expected = norm_pool_relu(convolved, weight, bias, 1e-3, (2, 2), found)
    torch.testing.assert_close(blocked, expected, atol=1e-4, rtol=1e-4)


def alike(build: Callable[[], nn.Module], inputs: Tensor) -> None:
    """A fused model gives the same as one of torch's operations: values, gradients, and in evaluation."""
    torch.manual_seed(0)
    plain, fused = build().to(PLACE).train(), build().to(PLACE).train()
    fused.load_state_dict(plain.state_dict())
    for module in fused.modules():
        if isinstance(module, Fusable):
            module.fused_by = "whalefl.tasks.fused"
    results = [model(inputs) for model in (plain, fused)]
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)
    slopes = []
    for model, result in zip((plain, fused), results, strict=True):
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        slopes.append(torch.autograd.grad(result.square().sum(), weights))
    for mine, other in zip(*slopes, strict=True):
        assert (mine - other).norm() <= 1e-3 * other.norm() + 1e-6  # rounding grows with every norm on the way
    scores = []
    for model in (plain, fused):
        gather_statistics(model.eval(), lambda: [inputs])
        with torch.no_grad():
            scores.append(model(inputs))
    torch.testing.assert_close(scores[1], scores[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [(4, 8), (1, 3, 4)])  # a slice of one channel is no grey image: it has a gradient
def test_a_fused_cnn(channels: tuple[int, ...]) -> None:
    axes, names = cnn_axes(1, channels, 3)
    alike(lambda: CNN(Shape(axes.sizes), 1, names, 3), drawn((4, 1, 8, 8))[0])


def test_a_fused_cnn_on_signals() -> None:
    axes, names = cnn_axes(2, (4, 8), 3, dims=1)
    alike(lambda: CNN(Shape(axes.sizes), 2, names, 3, dims=1), drawn((4, 2, 12))[0])


def test_a_fused_resnet() -> None:
    axes = resnet18_axes(3, 4)
    alike(lambda: ResNet18(Shape(dict.fromkeys(axes.sizes, 2)), 3, 4), drawn((4, 3, 16, 16))[0])


@pytest.mark.parametrize("module", [fused, word_losses])
def test_they_can_be_tried_out(module: ModuleType) -> None:
    module.try_out(PLACE)


@pytest.mark.parametrize("name", ["losses", "labels"])
def test_losses_that_come_out_wrong_are_noticed_when_tried_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(WordLogits, name)
    monkeypatch.setattr(WordLogits, name, lambda self, given: right(self, given) + 2)
    with pytest.raises(AssertionError):
        word_losses.try_out(PLACE)


def test_operations_that_do_not_work_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def try_out(place: str) -> None:
        raise RuntimeError(f"no compiler on {place}")

    monkeypatch.setitem(sys.modules, "broken", SimpleNamespace(try_out=try_out))
    with pytest.warns(UserWarning, match="broken do not work on this GPU .no compiler on cuda."):
        assert not fused_operations_work("broken")


def test_what_is_not_a_number_is_passed_on() -> None:
    x, weight, bias = drawn((2, 4, 4, 4), (4,), (4,))
    x[0, 0, 0, 0] = float("nan")
    assert norm_pool_relu(x, weight, bias, 1e-5, (2, 2))[:, 0].isnan().all()
    (kernel,) = drawn((4, 1, 3, 3))
    assert grey_block(x[:, :1].contiguous(), kernel, weight, bias, 1e-5).isnan().all()


@pytest.mark.parametrize(("rows", "classes", "copies"), [(6, 40, 2), (3, 5000, None), (4, 9000, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_over_many_classes(rows: int, classes: int, copies: int | None, dtype: torch.dtype) -> None:
    """Against float64 on the same numbers; there is room between the rows, which gets no gradient."""
    logits, uniforms = drawn((rows, classes), (1, rows))
    whole = F.pad(4 * logits, (0, 3)).to(dtype).requires_grad_()
    exact_whole = whole.detach().double().requires_grad_()
    absent = None if copies is None else torch.rand(copies, classes, device=PLACE) < 0.4
    targets = torch.arange(rows, device=PLACE) * (classes // rows)
    targets[0] = -100  # which torch ignores
    fused, exact = WordLogits(whole[:, :classes], absent), PlainLogits(exact_whole[:, :classes])
    if absent is not None:
        exact = PlainLogits(exact.rows.view(len(absent), -1, classes).masked_fill(absent[:, None], 0.0).flatten(0, 1))
    torch.testing.assert_close(fused.losses(targets), exact.losses(targets).float(), atol=1e-5, rtol=1e-5)
    (slope,) = drawn((rows,))
    found = torch.autograd.grad(fused.losses(targets), whole, slope)[0]
    other = torch.autograd.grad(exact.losses(targets), exact_whole, slope.double())[0]
    assert (found - other).norm() < (1e-5 if dtype is torch.float32 else 5e-3) * other.norm()
    assert not found[:, classes:].any() and not found[0].any()
    draws = torch.special.ndtr(uniforms[0])
    assert torch.equal(fused.labels(draws), exact.labels(draws.double()))
    assert fused.labels(torch.full_like(draws, 1 - 1e-7)).max() < classes


def test_losses_over_many_classes_pass_on_what_is_not_a_number() -> None:
    (logits,) = drawn((2, 100))
    logits[0, 3] = float("nan")
    losses = WordLogits(logits, None).losses(torch.tensor([5, 5], device=PLACE))
    assert losses[0].isnan() and losses[1].isfinite()


def test_moments_of_half_numbers_are_whole() -> None:
    """What is scored in 16 bits is still normalised by moments of 32."""
    norm, seen = StaticBatchNorm(3), []
    norm.observer = lambda count, mean, variance: seen.append((mean, variance))
    x = drawn((50, 3, 4, 4))[0].to(torch.bfloat16)
    norm.observe(x)
    variance, mean = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(seen[0], (mean.float(), variance.float()))
