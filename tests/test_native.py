"""Operations in C++ against torch's own in float64, and that nothing depends on a compiler being there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whalefl.bench.scenarios import SCENARIOS, orders_of, random_task
from whalefl.federation.engine import PlainEngine
from whalefl.federation.stacks import Precision
from whalefl.native import compiler, images, sgd
from whalefl.native.images import fits, mean_and_variance, norm_pool_relu
from whalefl.native.sgd import Descent
from whalefl.subnet.slicing import Weights
from whalefl.tasks.layers import Fusable, fused_operations_work
from whalefl.tasks.task import Task

needs_compiler = pytest.mark.skipif(compiler.command() is None, reason="there is no C++ compiler")
HALF = 2.0**-8  # what bfloat16 rounds to


def drawn(*shapes: Sequence[int]) -> list[Tensor]:
    source = torch.Generator().manual_seed(len(shapes[0]))
    return [torch.randn(*shape, generator=source) for shape in shapes]


# --- images


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((5, 8, 7, 7), (2, 2)),  # an odd edge, which the pool leaves out
        ((3, 20, 6, 5), (1, 1)),  # channels that fill no vector
        ((4, 70, 1, 9), (1, 2)),  # a signal
        ((2, 3, 9, 9), (3, 3)),
        ((40, 1, 12, 12), (2, 2)),
        ((1, 4, 1, 1), (1, 1)),
    ],
)
def test_norm_pool_and_relu(shape: tuple[int, ...], pool: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight, bias = drawn(shape, shape[1:2], shape[1:2])
    x = (3 + 2 * x).to(dtype).to(memory_format=torch.channels_last)
    x[0, :, :2, :2] = x[0, :, :1, :1]  # equals: the first of them is the largest
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    theirs = [t.double().requires_grad_() for t in (x, weight, bias)]
    normal = torch.native_batch_norm(*theirs, None, None, True, 0.0, 1e-3)[0]
    exact = F.relu(F.max_pool2d(normal, pool))
    fused = norm_pool_relu(*ours, 1e-3, pool)
    assert fused.dtype == dtype and fused.is_contiguous(memory_format=torch.channels_last)
    (slope,) = drawn(exact.shape)
    slope = slope.to(dtype)
    found = torch.autograd.grad(fused, ours, slope)
    allowed = 1e-5 if dtype == torch.float32 else HALF
    wanted = torch.autograd.grad(exact, theirs, slope.double())
    for mine, other in ((fused, exact), *zip(found, wanted, strict=True)):
        assert (mine - other).norm() <= allowed * other.norm() + 1e-6


@needs_compiler
def test_known_statistics() -> None:
    x, weight, bias = drawn((6, 20, 7, 6), (20,), (20,))
    x = 300 + 2 * x.to(memory_format=torch.channels_last)  # far from 0, where squares lose their digits
    mean, variance = mean_and_variance(x)
    expected = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean.double(), expected[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), expected[0], rtol=1e-5, atol=0)
    exact = F.batch_norm(x.double(), *(t.double() for t in (mean, variance, weight, bias)), eps=1e-3)
    pooled = norm_pool_relu(x, weight, bias, 1e-3, (2, 2), (mean, variance))
    torch.testing.assert_close(pooled, F.relu(F.max_pool2d(exact, 2)).float(), atol=2e-4, rtol=1e-4)


@needs_compiler
def test_what_is_no_number_shows() -> None:
    x, weight, bias = drawn((2, 4, 4, 4), (4,), (4,))
    x[1, 2, 3, 3] = torch.nan
    out = norm_pool_relu(x, weight, bias, 1e-5, (2, 2))
    assert out[:, 2].isnan().all() and out[:, [0, 1, 3]].isfinite().all()


def test_what_does_not_fit_is_left_to_torch() -> None:
    x = torch.zeros(2, 4, 4, 4)
    assert fits(x, (2, 2)) and fits(x.bfloat16(), (1, 1))
    assert not any((fits(x.double(), (2, 2)), fits(x.to("meta"), (2, 2)), fits(x[0], (1, 1)), fits(x[:0], (2, 2))))
    assert not fits(x, (5, 1)) and not fits(torch.zeros(1, 1, 8, 8), (8, 8))


# --- steps of SGD


@needs_compiler
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("clip", [0.0, 0.5, 1e9])
@pytest.mark.parametrize("half", [False, True])
def test_a_step_is_the_one_of_torch(copies: int, clip: float, half: bool) -> None:
    shapes = [(3 * 7, 5, 3, 3), (3,), (3 * 4099,)]
    weights = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in drawn(*shapes)]
    momentum = [torch.zeros_like(t) for t in weights]
    leaves = [t.bfloat16() for t in weights[:2]] + weights[2:] if half else weights
    parts = [[p.detach().double() for p in t.chunk(copies)] for t in weights]
    optimizers = [
        torch.optim.SGD([own[copy].requires_grad_() for own in parts], lr=0.1, momentum=0.9, weight_decay=0.01)
        for copy in range(copies)
    ]
    descent = Descent(weights, momentum, leaves, copies)
    for turn in range(3):
        gradients = [g.to(leaf.dtype) for g, leaf in zip(drawn(*shapes), leaves, strict=True)]
        gradients = [g * (turn + 1) for g in gradients]  # laid out as they come, which is not as the leaves are
        descent.step(gradients, rate=0.1, momentum=0.9, decay=0.01, clip=clip)
        for copy, optimizer in enumerate(optimizers):
            for own, gradient in zip(parts, gradients, strict=True):
                own[copy].grad = gradient.chunk(copies)[copy].double()
            if clip:
                torch.nn.utils.clip_grad_norm_([own[copy] for own in parts], clip)
            optimizer.step()
    for weight, leaf, own in zip(weights, leaves, parts, strict=True):
        torch.testing.assert_close(weight, torch.cat(own).detach().float(), rtol=1e-5, atol=1e-6)
        assert leaf is weight or torch.equal(leaf, weight.bfloat16())


# --- engines with and without


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is known of the compiler is asked again, before and after."""
    known = (compiler.kernels, images._operation, sgd._operation, fused_operations_work)
    for answers in known:
        answers.cache_clear()
    yield
    for answers in known:
        answers.cache_clear()


def a_round(task: Task, precision: Precision) -> tuple[Weights, bool]:
    """What a round of one client at each width comes to, and whether it was fused."""
    scenario = replace(SCENARIOS["cpu"]["mixed-measured"], clients=(1, 1, 2, 1, 1), iterations=3)
    torch.manual_seed(0)
    weights = dict(task.build(task.full).named_parameters())
    engine = PlainEngine(task, scenario.training, precision)
    sums, _ = engine.train(weights, orders_of(scenario, task))
    modules = [module for stack in engine._stacks.values() for module in stack.learner.model.modules()]
    fused = {module.fused is not None for module in modules if isinstance(module, Fusable)}
    assert len(fused) == 1
    return {name: total.clone() for name, total in sums.sums.items()}, fused.pop()


@needs_compiler
@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-5), ("bf16", 0.1)])
def test_a_round_is_the_same_without_a_compiler(
    precision: Precision, allowed: float, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = random_task("mnist", 200)
    native, fused = a_round(task, precision)
    assert fused
    fused_operations_work.cache_clear()
    monkeypatch.setenv("CXX", "")
    plain, fused = a_round(task, precision)
    assert not fused
    for name, total in plain.items():
        assert (native[name] - total).norm() <= allowed * total.norm(), name


@pytest.mark.parametrize("module", ["whalefl.native.images", "whalefl.native.sgd"])
def test_a_compiler_that_fails_is_said(
    module: str, fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match=f"{module} do not work on this processor .*; torch's own are slower"):
        assert not fused_operations_work(module, "cpu")
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_the_kernels_are_compiled_once(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "new"))
    compiler.kernels()
    (kept,) = (tmp_path / "new").iterdir()
    before = kept.stat().st_mtime_ns
    compiler.kernels.cache_clear()
    compiler.kernels()
    assert [kept] == list((tmp_path / "new").iterdir()) and kept.stat().st_mtime_ns == before


@needs_compiler
def test_a_cache_that_cannot_be_written_does_no_harm(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "file"))
    assert compiler.kernels().sgd
