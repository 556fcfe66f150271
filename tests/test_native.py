"""Operations in C++ against torch's own in float64, and that nothing depends on a compiler being there."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from whalefl.bench.scenarios import SCENARIOS, orders_of, random_task
from whalefl.federation.engine import PlainEngine
from whalefl.federation.stacks import Precision
from whalefl.federation.training import Training
from whalefl.federation.workers import WorkersEngine, can_fork
from whalefl.native import compiler, images
from whalefl.native.images import (
    convolve_tiny,
    fits,
    fits_grey,
    fits_tiny,
    grey_block,
    mean_and_variance,
    norm_pool_relu,
)
from whalefl.native.sgd import Descent
from whalefl.subnet.aggregation import count_devices
from whalefl.subnet.slicing import Weights
from whalefl.tasks.cnn import Block
from whalefl.tasks.layers import Fusable, fused_operations_work
from whalefl.tasks.task import Task


def compiles() -> bool:
    """Whether there is a compiler, and it knows the processor."""
    words = compiler.command()
    asked = ["-march=native", "-E", "-x", "c++", os.devnull]
    return words is not None and subprocess.run([*words, *asked], capture_output=True).returncode == 0


needs_compiler = pytest.mark.skipif(not compiles(), reason="there is no C++ compiler that knows this processor")
MODULES = ("whalefl.native.images", "whalefl.native.sgd")
HALF = 2.0**-8  # what bfloat16 rounds to


@pytest.fixture
def source() -> Generator:
    return Generator().manual_seed(0)


def drawn(source: Generator, *shapes: Sequence[int]) -> list[Tensor]:
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
def test_norm_pool_and_relu(
    shape: tuple[int, ...], pool: tuple[int, int], dtype: torch.dtype, source: Generator
) -> None:
    x, weight, bias = drawn(source, shape, shape[1:2], shape[1:2])
    x = (3 + 2 * x).to(dtype).to(memory_format=torch.channels_last)
    x[0, :, :2, :2] = x[0, :, :1, :1]  # equals: the first of them is the largest
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    theirs = [t.double().requires_grad_() for t in (x, weight, bias)]
    normal = torch.native_batch_norm(*theirs, None, None, True, 0.0, 1e-3)[0]
    exact = F.relu(F.max_pool2d(normal, pool))
    fused = norm_pool_relu(*ours, 1e-3, pool)
    assert fused.dtype == dtype and fused.is_contiguous(memory_format=torch.channels_last)
    (slope,) = drawn(source, exact.shape)
    slope = slope.to(dtype)
    found = torch.autograd.grad(fused, ours, slope)
    allowed = 1e-5 if dtype == torch.float32 else HALF
    wanted = torch.autograd.grad(exact, theirs, slope.double())
    for mine, other in ((fused, exact), *zip(found, wanted, strict=True)):
        assert (mine - other).norm() <= allowed * other.norm() + 1e-5


def agree(fused: Tensor, exact: Tensor, ours: Sequence[Tensor], theirs: Sequence[Tensor], source: Generator) -> None:
    """Values and all gradients are those of float64, up to float32's rounding."""
    assert fused.is_contiguous(memory_format=torch.channels_last)
    (slope,) = drawn(source, exact.shape)
    found = torch.autograd.grad(fused, ours, slope)
    wanted = torch.autograd.grad(exact, theirs, slope.double())
    for mine, other in ((fused, exact), *zip(found, wanted, strict=True)):
        assert (mine - other).norm() <= 1e-5 * other.norm()


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "channels", "groups"),
    [
        ((5, 1, 7, 6), 20, 1),  # an odd edge; channels that fill no vector
        ((3, 4, 8, 8), 16, 4),  # several groups in one vector
        ((2, 3, 4, 4), 96, 3),  # two vectors of each group
        ((1, 2, 2, 2), 36, 2),  # a vector with two groups
    ],
)
def test_a_grey_block(shape: tuple[int, ...], channels: int, groups: int, source: Generator) -> None:
    x, kernel, weight, bias = drawn(source, shape, (channels, 1, 3, 3), (channels,), (channels,))
    ours = [t.clone().requires_grad_() for t in (kernel, weight, bias)]
    theirs = [t.double().requires_grad_() for t in (kernel, weight, bias)]
    convolved = F.conv2d(x.double(), theirs[0], padding=1, groups=groups)
    normal = torch.native_batch_norm(convolved, *theirs[1:], None, None, True, 0.0, 1e-3)[0]
    agree(grey_block(x, *ours, 1e-3), F.relu(F.max_pool2d(normal, 2)), ours, theirs, source)
    variance, mean = torch.var_mean(convolved.detach(), dim=(0, 2, 3), correction=0)
    known = grey_block(x, *ours, 1e-3, (mean.float(), variance.float()))
    torch.testing.assert_close(known, grey_block(x, *ours, 1e-3), atol=1e-5, rtol=1e-4)


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "channels", "groups"),
    [
        ((10, 32, 3, 3), 64, 1),
        ((7, 16, 2, 2), 4, 1),  # images that fill no block; few outputs
        ((1, 16, 1, 1), 8, 1),  # only the middle tap sees anything
        ((13, 4 * 16, 3, 3), 4 * 36, 4),
        ((3, 2 * 48, 4, 4), 2 * 12, 2),
        ((2, 80, 1, 5), 16, 1),
        ((30, 96, 7, 7), 20, 1),  # more pixels than are summed at once, and the library's way forward
    ],
)
def test_a_tiny_convolution(shape: tuple[int, ...], channels: int, groups: int, source: Generator) -> None:
    tensors = drawn(source, shape, (channels, shape[1] // groups, 3, 3))
    ours = [t.clone().requires_grad_() for t in tensors]  # their channels first: they are brought into order
    theirs = [t.double().requires_grad_() for t in tensors]
    agree(convolve_tiny(*ours, groups), F.conv2d(*theirs, padding=1, groups=groups), ours, theirs, source)
    (alone,) = torch.autograd.grad(convolve_tiny(ours[0].detach(), ours[1], groups).sum(), ours[1])
    (both,) = torch.autograd.grad(convolve_tiny(*ours, groups).sum(), ours[1])
    assert torch.equal(alone, both)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_compiler
def test_convolutions_that_do_not_fit_are_left_to_torch(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.kernels(), "has_wide_vectors", lambda: True)  # as on a processor with wide vectors
    x, weight = torch.zeros(2, 32, 3, 3), torch.zeros(8, 32, 3, 3)
    assert fits_tiny(x, weight, 1) and fits_tiny(x, torch.zeros(8, 16, 3, 3), 2)
    assert not any(
        fits_tiny(x, weight, groups)
        for x, weight, groups in [
            (x.double(), weight.double(), 1),
            (x, weight.bfloat16(), 1),
            (x[:0], weight, 1),
            (x[:, :8], torch.zeros(8, 8, 3, 3), 1),
            (x[:, :16], weight, 1),
            (x, torch.zeros(8, 16, 3, 3), 4),
            (torch.zeros(2, 32, 14, 14), weight, 1),
            (x, torch.zeros(8, 32, 1, 1), 1),
        ]
    )
    grey, kernel = torch.zeros(2, 1, 8, 8), torch.zeros(4, 1, 3, 3)
    assert fits_grey(grey, kernel, (2, 2), 1)
    assert not fits_grey(grey, kernel.bfloat16(), (2, 2), 1) and not fits_grey(grey, kernel, (1, 2), 1)
    assert not fits_grey(grey.clone().requires_grad_(), kernel, (2, 2), 1)
    assert not fits_grey(torch.zeros(2, 3, 8, 8), kernel, (2, 2), 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert not fits_tiny(x, weight, 1) and not fits_grey(grey, kernel, (2, 2), 1)
    torch.set_num_threads(2)
    assert not fits_tiny(x, weight, 1) and not fits_grey(grey, kernel, (2, 2), 1)
    torch.set_num_threads(1)
    monkeypatch.setattr(compiler.kernels(), "has_wide_vectors", lambda: False)
    assert not fits_tiny(x, weight, 1) and not fits_grey(grey, kernel, (2, 2), 1)


@needs_compiler
def test_a_model_in_another_precision_trains_as_torch_does(source: Generator) -> None:
    """Nothing takes its weights for numbers of 32 bits."""
    x, weight, bias = drawn(source, (4, 16, 3, 3), (16,), (16,))
    exact = F.relu(F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3))
    for dtype in (torch.bfloat16, torch.float64):
        fused = norm_pool_relu(x, weight.to(dtype), bias.to(dtype), 1e-3, (1, 1))
        torch.testing.assert_close(fused, exact, atol=0.03, rtol=0.03)


@needs_compiler
def test_known_statistics(source: Generator) -> None:
    x, weight, bias = drawn(source, (6, 20, 7, 6), (20,), (20,))
    x = 300 + 2 * x.to(memory_format=torch.channels_last)  # far from 0, where squares lose their digits
    x[0, :, 0, 0] = 0  # and at the edge unlike the others
    mean, variance = mean_and_variance(x)
    expected = torch.var_mean(x.double(), dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean.double(), expected[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), expected[0], rtol=1e-5, atol=0)
    exact = F.batch_norm(x.double(), *(t.double() for t in (mean, variance, weight, bias)), eps=1e-3)
    pooled = norm_pool_relu(x, weight, bias, 1e-3, (2, 2), (mean, variance))
    torch.testing.assert_close(pooled, F.relu(F.max_pool2d(exact, 2)).float(), atol=2e-4, rtol=1e-4)


@needs_compiler
def test_known_statistics_have_a_gradient(one_thread: None, source: Generator) -> None:
    (image,) = drawn(source, (2, 1, 8, 8))
    block, grey = (Block(inputs, 16, 1.0, (2, 2), 2, "batch", 1) for inputs in (16, 1))
    for number, module in enumerate((grey, block)):
        module.fused_by = images.__name__
        module.norm.statistics = (torch.zeros(16), torch.ones(16))
        x = image.expand(2, 1 if number == 0 else 16, 8, 8)
        torch.autograd.grad(module(x).sum(), [module.conv.weight, module.norm.weight])


@needs_compiler
def test_images_with_the_wrong_number_of_channels_are_refused(one_thread: None) -> None:
    for inputs, shape in ((1, (2, 3, 8, 8)), (1, (2, 32, 8, 8)), (32, (2, 16, 3, 3))):
        block = Block(inputs, 16, 1.0, (2, 2), 2, "batch", 1)
        block.fused_by = images.__name__
        with pytest.raises(RuntimeError, match="channels|primitive descriptor|cannot be multiplied"):
            block(torch.zeros(shape))


@needs_compiler
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_other_defaults_of_torch_change_nothing(default: torch.dtype, fresh: None, source: Generator) -> None:
    x, weight, bias = drawn(source, (4, 16, 4, 4), (16,), (16,))
    kernel, taps = drawn(source, (16, 1, 3, 3), (4, 16, 3, 3))
    kernel.requires_grad_()

    def found() -> list[Tensor]:
        out = grey_block(x[:, :1], kernel, weight, bias, 1e-3)
        again = norm_pool_relu(convolve_tiny(out, taps), weight[:4], bias[:4], 1e-3, (1, 1))
        return [out, again, *torch.autograd.grad(again.square().sum(), kernel)]

    expected = found()
    torch.set_default_dtype(default)
    try:
        assert all(fused_operations_work(module, "cpu") for module in MODULES)
        assert all(torch.equal(mine, other) for mine, other in zip(found(), expected, strict=True))
    finally:
        torch.set_default_dtype(torch.float32)


@needs_compiler
def test_what_is_no_number_shows(source: Generator) -> None:
    x, weight, bias = drawn(source, (2, 4, 4, 4), (4,), (4,))
    x[1, 2, 3, 3] = torch.nan
    out = norm_pool_relu(x, weight, bias, 1e-5, (2, 2))
    assert out[:, 2].isnan().all() and out[:, [0, 1, 3]].isfinite().all()
    known = norm_pool_relu(x, weight, bias, 1e-5, (2, 2), (torch.zeros(4), torch.ones(4)))
    assert known.isnan().sum() == 1 and known[1, 2, 1, 1].isnan()


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
def test_a_step_is_the_one_of_torch(copies: int, clip: float, half: bool, source: Generator) -> None:
    shapes = [(3 * 7, 5, 3, 3), (3,), (3 * 4099,)]
    weights = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in drawn(source, *shapes)]
    momentum = [torch.zeros_like(t) for t in weights]
    leaves = [t.bfloat16() for t in weights[:2]] + weights[2:] if half else weights
    parts = [[p.detach().double() for p in t.chunk(copies)] for t in weights]
    optimizers = [
        torch.optim.SGD([own[copy].requires_grad_() for own in parts], lr=0.1, momentum=0.9, weight_decay=0.01)
        for copy in range(copies)
    ]
    descent = Descent(weights, momentum, leaves, copies)
    for turn in range(3):
        gradients = [g.to(leaf.dtype) for g, leaf in zip(drawn(source, *shapes), leaves, strict=True)]
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


@needs_compiler
def test_a_gradient_that_is_no_number_ends_its_own_copy_alone() -> None:
    weight, momentum, gradient = torch.ones(6), torch.zeros(6), torch.ones(6)
    gradient[1] = torch.nan
    Descent([weight], [momentum], [weight], 2).step([gradient], rate=0.1, momentum=0.9, decay=0.0, clip=1.0)
    assert weight[:3].isnan().all() and weight[3:].isfinite().all()


# --- engines with and without


def ask_anew() -> None:
    """Forget what is known of the compiler."""
    for answers in (compiler.tried, compiler.operation, fused_operations_work):
        answers.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    ask_anew()
    yield
    ask_anew()


def a_round(task: Task, precision: Precision) -> tuple[Weights, bool]:
    """How far a round of one client at each width moves the weights, and whether it was fused."""
    scenario = replace(SCENARIOS["cpu"]["mixed-measured"], clients=(1, 1, 2, 1, 1), iterations=3)
    torch.manual_seed(0)
    weights = {name: weight.detach() for name, weight in task.build(task.full).named_parameters()}
    engine = PlainEngine(task, scenario.training, precision)
    sums, _ = engine.train(weights, orders_of(scenario, task))
    average = sums.average(weights, count_devices(task.axes, sums.contributions))
    modules = [module for stack in engine._stacks.values() for module in stack.learner.model.modules()]
    fused = {module.fused is not None for module in modules if isinstance(module, Fusable)}
    assert len(fused) == 1
    return {name: average[name] - weight for name, weight in weights.items()}, fused.pop()


@needs_compiler
@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 1e-4), ("bf16", 0.3)])
def test_a_round_is_the_same_without_a_compiler(
    precision: Precision, allowed: float, fresh: None, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = random_task("mnist", 200)
    native, fused = a_round(task, precision)
    assert fused
    fused_operations_work.cache_clear()
    monkeypatch.setenv("CXX", "")
    plain, fused = a_round(task, precision)
    assert not fused
    for name, movement in plain.items():
        assert (native[name] - movement).norm() <= allowed * movement.norm(), name


@needs_compiler
def test_a_compiler_that_is_careless_by_default_is_told_not_to_be(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", f"{shlex.join(compiler.command() or [])} -ffast-math")
    assert all(fused_operations_work(module, "cpu") for module in MODULES)  # which loses what is no number, else
    smallest = float("1e-310")  # not a literal, of which Python would make the product before anything is loaded
    assert smallest * 0.5 > 0  # nor does the library that was loaded round such numbers to 0 everywhere


@pytest.mark.parametrize("module", MODULES)
def test_a_compiler_that_fails_is_said(
    module: str, fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.warns(UserWarning, match=f"{module} do not work on this processor .*; torch's own are slower"):
        assert not fused_operations_work(module, "cpu")
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_fails_is_not_asked_again(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text(f"#!/bin/sh\necho asked >> {tmp_path / 'calls'}\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(failing))
    with pytest.warns(UserWarning, match="do not work on this processor"):
        assert not any(fused_operations_work(module, "cpu") for module in MODULES)
    assert (tmp_path / "calls").read_text() == "asked\n"


@needs_compiler
def test_the_kernels_are_compiled_once(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "new"))
    compiler.kernels()
    (kept,) = (tmp_path / "new").iterdir()
    before = kept.stat().st_mtime_ns
    compiler.tried.cache_clear()
    compiler.kernels()
    assert [kept] == list((tmp_path / "new").iterdir()) and kept.stat().st_mtime_ns == before


@needs_compiler
def test_kernels_that_are_not_whole_are_made_again(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path))
    compiler.kernels()
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # this process has loaded it, and is to go on with that
    for length in (0, 4, len(whole) // 2, len(whole) - 1):
        kept.write_bytes(whole[:length])
        compiler.tried.cache_clear()
        assert compiler.kernels().sgd and len(kept.read_bytes()) == len(whole)
        kept.unlink()


@needs_compiler
def test_the_compiler_is_heard(fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that knows the processor, and then fails."""
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\ncase "$*" in *-dM*) ;; *) echo "no such thing" >&2; exit 3 ;; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(OSError, match="fake failed with exit code 3: no such thing"):
        compiler.kernels()
    assert not (tmp_path / "cache").exists()


@needs_compiler
@pytest.mark.skipif(not can_fork(), reason="there are no workers here")
def test_workers_find_the_kernels_compiled(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkersEngine(random_task("mnist", 20), Training(iterations=1, batch=2), workers=1):
        assert fused_operations_work.cache_info().currsize == 2
        assert all(fused_operations_work(module, "cpu") for module in ("whalefl.native.images", "whalefl.native.sgd"))


@needs_compiler
def test_they_are_tried_out_in_inference_mode_too(fresh: None) -> None:
    with torch.inference_mode():
        assert fused_operations_work("whalefl.native.images", "cpu")


@needs_compiler
def test_a_fused_model_can_be_copied_and_sent(one_thread: None) -> None:
    model = PlainEngine(random_task("mnist", 20), Training(iterations=1, batch=2)).whole
    for twin in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        image = torch.rand(2, 1, 28, 28)
        assert torch.equal(twin(image), model(image))


@needs_compiler
def test_a_cache_that_cannot_be_written_does_no_harm(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "file"))
    assert compiler.kernels().sgd
