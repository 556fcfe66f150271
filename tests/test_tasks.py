"""The paper's four tasks: models at every width, axes that hold, what happens to examples, and a federated round."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from made_up import WORDS, made_up, made_up_arrays
from whalefl.errors import WhaleflError
from whalefl.federation.methods import make_method
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import simulate
from whalefl.federation.stacks import resident
from whalefl.federation.training import Training
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.subnet.axes import Axes, Segment
from whalefl.subnet.plans import EXTRACTIONS, Prefix
from whalefl.subnet.slicing import Weights, cut
from whalefl.tasks.catalogue import TASKS, load_task
from whalefl.tasks.cifar10 import MEANS, SPREADS, shifted_and_flipped
from whalefl.tasks.costs import level_costs
from whalefl.tasks.layers import NORMS, Norm, StaticBatchNorm, groups, norm
from whalefl.tasks.partition import Partition
from whalefl.tasks.products import convolve_grey, convolve_tiny, product
from whalefl.tasks.task import Examples, Shape, Task
from whalefl.tasks.transformer import Sizes, Transformer, transformer_axes
from whalefl.tasks.wikitext2 import LENGTH, articles, wikitext2_task
from whalefl.values import Ladder

LADDER = Ladder()
NAMES = ("mnist", "cifar10", "har", "wikitext2")
VOCABULARY = 33_278


@cache
def full_weights(name: str, norm: Norm = "batch") -> Weights:
    """Weights in which no two channels are alike, norms included."""
    weights = made_up(name, norm).initial_weights(0)
    generator = torch.Generator().manual_seed(1)
    return {key: value + 0.01 * torch.randn(value.shape, generator=generator) for key, value in weights.items()}


def loaded(task: Task, shape: Shape, weights: Weights) -> nn.Module:
    model = task.build(shape).eval()
    model.load_state_dict(dict(weights))
    return model


def logits(task: Task, shape: Shape, weights: Weights, examples: int = 2) -> Tensor:
    with torch.no_grad():
        return loaded(task, shape, weights)(task.prepare(task.test.inputs[:examples]))


# How many parameters.


def cnn_count(width: float, inputs: int, kernel: int, classes: int) -> int:
    total = 0
    for channels in (64, 128, 256, 512):
        outputs = ceil(width * channels)
        total += inputs * outputs * kernel + 3 * outputs  # convolution; its bias, and the norm's two
        inputs = outputs
    return total + inputs * classes + classes


def resnet_count(width: float) -> int:
    before = ceil(width * 64)
    total = 3 * before * 9
    for channels in (64, 128, 256, 512):
        here = ceil(width * channels)
        total += 2 * before + before * here * 9 + 2 * here + here * here * 9  # the first block
        total += before * here if before != here else 0  # its shortcut
        total += 2 * (2 * here + here * here * 9)  # the second block
        before = here
    return total + 2 * before + before * 10 + 10


def transformer_count(width: float, words: int) -> int:
    model, heads, hidden = ceil(width * 256), 8 * ceil(width * 32), ceil(width * 512)
    attention = 3 * (model * heads + heads) + heads * model + model
    layer = attention + model * hidden + hidden + hidden * model + model + 2 * 2 * model
    embedding = (words + 1) * model + 64 * model + 2 * model
    decoder = model * model + model + 2 * model + model * words + words
    return embedding + 4 * layer + decoder


COUNTS: dict[str, tuple[Callable[[float], int], tuple[int, ...]]] = {
    "mnist": (lambda s: cnn_count(s, 1, 9, 10), (1_556_874, 391_370, 98_922, 25_274, 6_594)),
    "cifar10": (resnet_count, (11_172_170, 2_796_714, 701_018, 176_178, 44_510)),
    "har": (lambda s: cnn_count(s, 9, 3, 6), (523_782, 132_870, 34_182, 9_030, 2_502)),
    "wikitext2": (
        lambda s: transformer_count(s, VOCABULARY),
        (19_263_486, 9_107_710, 4_435_326, 2_200_510, 1_108_446),
    ),
}


def real_axes(name: str) -> Axes:
    """With the vocabulary of the real text."""
    return transformer_axes(Sizes(VOCABULARY)) if name == "wikitext2" else made_up(name).axes


def built_count(name: str, width: float) -> int:
    shape = Shape.of(Prefix().plan(real_axes(name), width, 0, 0, 0), width)
    with torch.device("meta"):
        model = Transformer(shape, Sizes(VOCABULARY)) if name == "wikitext2" else made_up(name).build(shape)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_every_level(name: str) -> None:
    formula, stated = COUNTS[name]
    axes = real_axes(name)
    for level in LADDER:
        width = LADDER.width(level)
        plan = Prefix().plan(axes, width, 0, 0, 0)
        expected = stated[level - 1]
        assert formula(width) == expected
        assert built_count(name, width) == axes.slice_count(plan) == expected
    assert built_count(name, 0.37) == formula(0.37)  # odd sizes


@pytest.mark.parametrize(("name", "quadratic"), [("mnist", 0.99), ("cifar10", 0.99), ("har", 0.98), ("wikitext2", 0.1)])
def test_slices_shrink_with_the_square_of_the_width_but_for_what_is_cut_once_or_never(
    name: str, quadratic: float
) -> None:
    axes = real_axes(name)
    cut_dimensions = [0, 0, 0]
    for key, dims in axes.parameters.items():
        cuts = sum(any(isinstance(part, Segment) for part in dim) for dim in dims)
        cut_dimensions[cuts] += int(np.prod(axes.shapes[key]))
    for level in LADDER:
        s = LADDER.width(level)
        assert sum(count * s**cuts for cuts, count in enumerate(cut_dimensions)) == COUNTS[name][1][level - 1]
    # All but a text's, whose rows for words are most of the model and are cut in one dimension only.
    assert cut_dimensions[2] / axes.count > quadratic
    assert (name == "wikitext2") == (cut_dimensions[1] / axes.count > 0.8)


# Slices.


@pytest.mark.parametrize("extraction", EXTRACTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_every_slice_is_a_model_of_its_own(name: str, extraction: str) -> None:
    task = made_up(name)
    for width in (*(LADDER.width(level) for level in LADDER), 0.37):
        plan = EXTRACTIONS[extraction].plan(task.axes, width, 3, 1, 0)
        answer = logits(task, Shape.of(plan, width), cut(task.axes, full_weights(name), plan))
        predictions = (2, LENGTH) if name == "wikitext2" else (2,)
        assert answer.shape == (*predictions, task.classes)
        assert answer.isfinite().all()


@pytest.mark.parametrize("extraction", EXTRACTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_slice_of_full_width_is_the_model(name: str, extraction: str) -> None:
    task = made_up(name)
    plan = EXTRACTIONS[extraction].plan(task.axes, 1.0, 3, 1, 0)
    piece = cut(task.axes, full_weights(name), plan)
    assert torch.equal(logits(task, Shape.of(plan, 1.0), piece), logits(task, task.full, full_weights(name)))


def permuted(axes: Axes, weights: Weights, orders: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The weights with the indices of every axis in another order."""
    result = {}
    for name, dims in axes.parameters.items():
        value = weights[name]
        for number, dim in enumerate(dims):
            value = value.index_select(number, torch.from_numpy(axes.positions(dim, orders)))
        result[name] = value
    return result


@pytest.mark.parametrize("name", NAMES)
def test_reordering_any_axis_everywhere_changes_nothing(name: str) -> None:
    task, weights = made_up(name), full_weights(name)
    rng = np.random.default_rng(2)
    orders = {axis: rng.permutation(size) for axis, size in task.axes.sizes.items()}
    before = logits(task, task.full, weights)
    after = logits(task, task.full, permuted(task.axes, weights, orders))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_reordering_an_axis_in_one_place_only_does_change_the_answer(name: str) -> None:
    """So that the test above has something to find, whichever axis were declared wrongly."""
    task, weights = made_up(name), full_weights(name)
    before = logits(task, task.full, weights)
    rng = np.random.default_rng(3)
    for axis, size in task.axes.sizes.items():
        orders = {other: np.arange(n) for other, n in task.axes.sizes.items()} | {axis: rng.permutation(size)}
        everywhere = permuted(task.axes, weights, orders)
        one = next(key for key in weights if weights[key].ndim > 1 and not torch.equal(everywhere[key], weights[key]))
        changed = logits(task, task.full, {**weights, one: everywhere[one]})
        assert (changed - before).abs().max() > 1e-3, axis


@pytest.mark.parametrize("name", NAMES)
def test_label_rows_are_never_cut(name: str) -> None:
    axes = made_up(name).axes
    rows = {key: axes.size(axes.parameters[key][dim]) for key, dim in axes.labels.items()}
    if name == "wikitext2":
        assert rows == {"words.weight": WORDS + 1, "decoder.weight": WORDS, "decoder.bias": WORDS}
        assert axes.counting_rows("words.weight", (3,)).nonzero()[0].tolist() == [3, WORDS]  # and the mask
        assert axes.counting_rows("decoder.weight", (3,)).nonzero()[0].tolist() == [3]
    else:
        classes = made_up(name).classes
        assert rows == {"classifier.weight": classes, "classifier.bias": classes}


def plain_resnet(weights: Weights, x: Tensor, width: float) -> Tensor:
    def active(x: Tensor, key: str) -> Tensor:
        scale, shift = weights[f"{key}.0.weight"], weights[f"{key}.0.bias"]
        return F.relu(F.batch_norm(x / width, None, None, scale, shift, training=True))

    x = F.conv2d(x, weights["stem.weight"], padding=1)
    for number in range(8):
        key, halves = f"blocks.{number}", number in (2, 4, 6)
        stride = 2 if halves else 1
        before = active(x, f"{key}.before1")
        shortcut = F.conv2d(before, weights[f"{key}.shortcut.weight"], stride=2) if halves else x
        inner = F.conv2d(before, weights[f"{key}.conv1.weight"], stride=stride, padding=1)
        x = shortcut + F.conv2d(active(inner, f"{key}.before2"), weights[f"{key}.conv2.weight"], padding=1)
    pooled = active(x, "after").mean((2, 3))
    return F.linear(pooled, weights["classifier.weight"], weights["classifier.bias"])


def plain_transformer(weights: Weights, tokens: Tensor, width: float) -> Tensor:
    def linear(x: Tensor, key: str) -> Tensor:
        return F.linear(x, weights[f"{key}.weight"], weights[f"{key}.bias"])

    def normal(x: Tensor, key: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{key}.weight"], weights[f"{key}.bias"])

    x = normal((weights["words.weight"][tokens] + weights["positions.weight"]) / width, "norm")
    for number in range(4):
        key = f"layers.{number}"
        q, k, v = (linear(x, f"{key}.attention.linear_{part}") / width for part in "qkv")
        heads = [F.scaled_dot_product_attention(*qkv) for qkv in zip(*(y.chunk(8, -1) for y in (q, k, v)), strict=True)]
        x = normal(x + linear(torch.cat(heads, -1), f"{key}.attention.linear_o") / width, f"{key}.norm1")
        hidden = F.gelu(linear(x, f"{key}.linear1") / width)
        x = normal(x + linear(hidden, f"{key}.linear2") / width, f"{key}.norm2")
    return linear(normal(F.gelu(linear(x, "linear") / width), "last_norm"), "decoder")


@pytest.mark.parametrize("width", [1.0, 0.25])
@pytest.mark.parametrize(("name", "plain"), [("cifar10", plain_resnet), ("wikitext2", plain_transformer)])
def test_the_models_are_what_they_are_called(
    name: str, plain: Callable[[Weights, Tensor, float], Tensor], width: float
) -> None:
    task = made_up(name)
    plan = Prefix().plan(task.axes, width, 0, 0, 0)
    piece = cut(task.axes, full_weights(name), plan)
    expected = plain(piece, task.prepare(task.test.inputs[:2]), width)
    torch.testing.assert_close(logits(task, Shape.of(plan, width), piece), expected, rtol=1e-4, atol=1e-5)


def test_only_the_text_model_drops_out() -> None:
    dropped = {
        name: {m.p for m in made_up(name).build(made_up(name).full).modules() if isinstance(m, nn.Dropout)}
        for name in NAMES
    }
    assert dropped == {"mnist": set(), "cifar10": set(), "har": set(), "wikitext2": {0.2}}


def test_costs_fall_from_level_to_level() -> None:
    for name in NAMES:
        costs = level_costs(made_up(name), LADDER)
        for wide, narrow in zip(costs, costs[1:], strict=False):
            assert wide.flops > narrow.flops and wide.activation_bytes > narrow.activation_bytes


# Norms.


@pytest.mark.parametrize(("shape", "twin"), [((4, 3, 5), nn.BatchNorm1d), ((4, 3, 5, 5), nn.BatchNorm2d)])
def test_static_batch_norm_is_torchs_at_any_rank(shape: tuple[int, ...], twin: type[nn.Module]) -> None:
    x = torch.randn(shape)
    ours, theirs = StaticBatchNorm(3), twin(3)
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in theirs.named_parameters()]
    torch.testing.assert_close(ours(x), theirs(x))
    theirs.running_mean, theirs.running_var = torch.randn(3), torch.rand(3) + 0.5
    ours.statistics = theirs.running_mean, theirs.running_var
    torch.testing.assert_close(ours(x), theirs.eval()(x))


@given(st.integers(1, 600))
def test_groups_are_equal_and_never_small_where_there_are_several(channels: int) -> None:
    count = groups(channels)
    assert channels % count == 0
    assert count == 1 or channels // count >= 16


@pytest.mark.parametrize("full", [64, 128, 256, 512])
def test_a_prefix_of_channels_is_the_first_groups(full: int) -> None:
    x = torch.randn(2, full, 3, 3)
    whole = norm("group", full)(x)
    for level in LADDER:
        channels = int(full * LADDER.width(level))
        piece = norm("group", channels)(x[:, :channels])
        assert channels // groups(channels) == min(16, channels)
        if channels >= 16:
            torch.testing.assert_close(piece, whole[:, :channels])


def test_a_norm_has_a_name() -> None:
    with pytest.raises(WhaleflError, match="norm is 'layer'; it must be one of batch, group"):
        norm("layer", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", ["mnist", "cifar10", "har"])
def test_both_norms_train_at_every_level(name: str, kind: Norm) -> None:
    task = made_up(name, kind)
    found = {type(module) for module in task.build(task.full).modules()} & {StaticBatchNorm, nn.GroupNorm}
    assert found == {StaticBatchNorm if kind == "batch" else nn.GroupNorm}
    assert task.axes == made_up(name).axes
    for width in (*(LADDER.width(level) for level in LADDER), 0.37):
        plan = Prefix().plan(task.axes, width, 0, 0, 0)
        model = loaded(task, Shape.of(plan, width), cut(task.axes, full_weights(name, kind), plan)).train()
        picked = torch.arange(4)
        inputs, targets = task.prepare(task.train.inputs[picked]), task.train.targets[picked]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            assert F.cross_entropy(model(inputs), targets) < loss


# Examples.


def test_images_stay_bytes_until_they_are_used() -> None:
    for name in ("mnist", "cifar10"):
        task = made_up(name)
        assert task.train.inputs.dtype == task.test.inputs.dtype == torch.uint8
        assert task.train.targets.dtype == torch.int64
        assert task.prepare(task.train.inputs[:3]).dtype == torch.float32
        assert task.notes == ("a note",)


def test_pictures_are_normalised() -> None:
    grey = made_up("mnist").prepare(torch.full((1, 1, 2, 2), 51, dtype=torch.uint8))
    torch.testing.assert_close(grey, torch.full((1, 1, 2, 2), (0.2 - 0.1307) / 0.3081))
    colours = made_up("cifar10").prepare(torch.full((5, 3, 2, 2), 51, dtype=torch.uint8))
    assert colours.shape == (5, 3, 2, 2)
    for colour in range(3):
        expected = torch.full((5, 2, 2), (0.2 - MEANS[colour]) / SPREADS[colour])
        torch.testing.assert_close(colours[:, colour], expected)


def test_in_the_middle_and_unflipped_a_picture_stays_as_it_is() -> None:
    images = made_up("cifar10").train.inputs
    assert torch.equal(shifted_and_flipped(images, torch.full((24, 3), 0.5)), images)
    flipped = shifted_and_flipped(images, torch.tensor([0.5, 0.5, 0.0]).repeat(24, 1))
    assert torch.equal(flipped, images.flip(-1))


def test_crops_are_those_cut_one_by_one() -> None:
    images = made_up("cifar10").train.inputs
    uniforms = torch.rand(24, 3, generator=torch.Generator().manual_seed(0))
    uniforms[0], uniforms[1] = 0.0, 1 - 2**-24  # the first and the last crop
    result = shifted_and_flipped(images, uniforms)
    assert result.dtype == torch.uint8 and result.shape == images.shape
    for image, (row, column, flip), cropped in zip(images, uniforms.tolist(), result, strict=True):
        frame = torch.zeros(3, 40, 40, dtype=torch.uint8)
        frame[:, 4:36, 4:36] = image
        top, left = int(9 * row), int(9 * column)
        expected = frame[:, top : top + 32, left : left + 32]
        assert torch.equal(cropped, expected.flip(-1) if flip < 0.5 else expected)


def test_signals_are_normalised_by_the_training_windows() -> None:
    task, arrays = made_up("har"), made_up_arrays("har")
    assert task.train.inputs.dtype == torch.float32 and task.train.inputs.shape == (24, 9, 128)
    torch.testing.assert_close(task.train.inputs.mean((0, 2)), torch.zeros(9), atol=1e-5, rtol=0)
    torch.testing.assert_close(task.train.inputs.std((0, 2), correction=0), torch.ones(9))
    signal = arrays["x_train"][:, 4]
    expected = torch.tensor((arrays["x_test"][:, 4] - signal.mean()) / signal.std())
    torch.testing.assert_close(task.test.inputs[:, 4], expected, atol=1e-5, rtol=1e-5)
    assert task.groups is not None and task.groups.tolist() == [1] * 8 + [2] * 8 + [3] * 8


def test_a_text_is_cut_into_sequences() -> None:
    task, arrays = made_up("wikitext2"), made_up_arrays("wikitext2")
    assert task.train.inputs.dtype == torch.int32 and task.train.targets.dtype == torch.int64
    assert task.train.inputs.shape == task.train.targets.shape == (24, LENGTH)
    assert task.test.inputs.shape == (24, LENGTH)  # the 63 words left are not enough for one more
    assert task.train.targets[1].tolist() == arrays["tokens_train"][64:128].tolist()
    assert task.prepare(task.train.inputs[:2]).dtype == torch.int64
    assert task.classes == WORDS


def test_some_words_are_hidden_others_every_time() -> None:
    task = made_up("wikitext2")
    picked = torch.arange(24)
    assert torch.equal(task.training_inputs(picked, None), task.train.targets)
    uniforms = torch.rand(24, LENGTH, generator=torch.Generator().manual_seed(0))
    inputs = task.training_inputs(picked, uniforms)
    hidden = inputs == WORDS
    assert torch.equal(hidden, uniforms < 0.15) and 0.12 < hidden.float().mean() < 0.18
    assert torch.equal(inputs[~hidden], task.train.targets[~hidden])


def test_always_the_same_words_are_hidden_in_testing() -> None:
    task = made_up("wikitext2")
    again = wikitext2_task(made_up_arrays("wikitext2"))
    assert torch.equal(task.test.inputs, again.test.inputs) and task.test.inputs.dtype == torch.int32
    assert task.masked is not None
    hidden = task.masked(task.prepare(task.test.inputs))
    assert 0.12 < hidden.float().mean() < 0.18
    assert torch.equal(task.prepare(task.test.inputs)[~hidden], task.test.targets[~hidden])
    assert task.test.targets.max() < WORDS


def test_a_sequence_belongs_to_the_article_in_which_it_begins() -> None:
    starts = np.array([2, 64, 190, 200])
    assert articles(starts, 5).tolist() == [0, 1, 1, 2, 3]
    assert articles(starts, 5).dtype == np.int64


# A round.


@pytest.mark.parametrize("name", NAMES)
def test_a_federated_round(name: str) -> None:
    task = made_up(name)
    kind = "contiguous" if name == "wikitext2" else "sigma"
    settings = Settings(rounds=1, training=Training(iterations=1, batch=2), partition=Partition(kind=kind))
    fleet = Fleet((DeviceGroup("MacBookPro2018", 1), DeviceGroup("RaspberryPi4", 1)))
    [finished] = simulate(task, make_method("whale"), fleet, settings=settings)
    record = finished.record
    assert record.accuracy is not None and 0 <= record.accuracy <= 1
    assert np.isfinite(record.train_loss) and len(record.devices) == 2
    assert all(report.fisher is not None and report.fisher > 0 for report in record.devices)
    assert set(record.metrics) == ({"accuracy_all", "perplexity"} if name == "wikitext2" else set())


# By name.


def test_a_task_brings_in_no_others_code() -> None:
    program = (
        "import sys; from whalefl.tasks.catalogue import load_task; load_task('digits'); "
        "assert not {'whalefl.tasks.resnet', 'whalefl.tasks.transformer', 'whalefl.tasks.data'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_tasks_norms_and_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHALEFL_DATA", raising=False)
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path / "cache"))
    assert set(TASKS) == {"digits", *NAMES}
    with pytest.raises(WhaleflError, match="task is 'mnits'.*did you mean 'mnist'"):
        load_task("mnits")
    with pytest.raises(WhaleflError, match="norm is 'layer'; it must be one of batch, group"):
        load_task("digits", norm="layer")
    with pytest.raises(WhaleflError, match="norm is 'group'; it must be 'batch', since the task 'wikitext2'"):
        load_task("wikitext2", norm="group")
    for name in NAMES:
        with pytest.raises(WhaleflError, match=f"data set '{name}' is not in .*whalefl data fetch {name}"):
            load_task(name, tmp_path)
    with pytest.raises(WhaleflError, match="task is 'nowhere:task', which cannot be imported"):
        load_task("nowhere:task")


def test_a_task_of_ones_own_is_given_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = """
from dataclasses import replace
from whalefl.tasks.digits import digits
def plain():
    return digits()
def choosy(data_dir=None, norm="mine"):
    return replace(digits(), name=f"{data_dir} {norm}")
def wrong():
    return 5
"""
    (tmp_path / "of_my_own.py").write_text(module, encoding="utf8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_task("of_my_own:plain", tmp_path).name == "digits"
    assert load_task("of_my_own:choosy").name == "None mine"
    assert load_task("of_my_own:choosy", tmp_path, "group").name == f"{tmp_path} group"
    with pytest.raises(WhaleflError, match="norm is 'group'"):
        load_task("of_my_own:plain", norm="group")
    with pytest.raises(WhaleflError, match="returned int; it must return a whalefl.Task"):
        load_task("of_my_own:wrong")


# The real data, where it is at hand.


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Task]:
    if not os.environ.get("WHALEFL_DATA"):
        pytest.skip("$WHALEFL_DATA names no folder with data sets")
    monkeypatch.setenv("WHALEFL_CACHE", str(tmp_path))

    def task(name: str) -> Task:
        try:
            return load_task(name)
        except WhaleflError as error:
            if "is not in" not in str(error):
                raise
            pytest.skip(str(error))

    return task


def test_a_first_step_on_mnist(real: Callable[[str], Task]) -> None:
    task = real("mnist")
    assert task.train.inputs.dtype == torch.uint8 and task.train.inputs.shape == (60_000, 1, 28, 28)
    model = task.build(task.full)
    picked = torch.arange(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = F.cross_entropy(model(task.training_inputs(picked, None)), task.train.targets[picked])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert task.train.inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("name", "dtype", "train", "test"),
    [
        pytest.param("cifar10", torch.uint8, (50_000, 3, 32, 32), (10_000, 3, 32, 32), marks=pytest.mark.slow),
        ("har", torch.float32, (7_352, 9, 128), (2_947, 9, 128)),
        ("wikitext2", torch.int32, (32_634, 64), (3_837, 64)),
    ],
)
def test_the_real_examples(
    real: Callable[[str], Task], name: str, dtype: torch.dtype, train: tuple[int, ...], test: tuple[int, ...]
) -> None:
    task = real(name)
    assert task.train.inputs.dtype == task.test.inputs.dtype == dtype
    assert tuple(task.train.inputs.shape) == train and tuple(task.test.inputs.shape) == test
    assert task.axes.count == COUNTS[name][1][0]
    if name != "cifar10":
        assert task.groups is not None and len(task.groups) == len(task.train)
        assert len(set(task.groups.tolist())) == {"har": 21, "wikitext2": 600}[name]


@pytest.mark.parametrize(
    ("convolve", "shape"),
    [
        (convolve_grey, (4, 1, 7, 5)),
        (convolve_tiny, (4, 6, 3, 2)),
        (convolve_tiny, (2, 3, 4, 4)),
        (convolve_tiny, (3, 5, 1, 1)),
    ],
)
def test_convolutions_as_products_are_convolutions(
    convolve: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(8, shape[1], 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    ours, theirs = convolve(x, weight), F.conv2d(x, weight, padding=1)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    mine, other = (torch.autograd.grad(y, (x, weight), upstream) for y in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_products_are_those_of_matrices_whatever_their_layout(
    monkeypatch: pytest.MonkeyPatch, library: bool, dtype: torch.dtype, tolerance: float
) -> None:
    if not library:
        monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    torch.manual_seed(0)
    left, right = torch.randn(7, 5, dtype=torch.float64), torch.randn(5, 9, dtype=torch.float64)
    for rows, columns in ((left, right.t()), (left.t().contiguous().t(), right.t().contiguous())):
        found = product(rows.to(dtype), columns.to(dtype))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), left @ right, rtol=tolerance, atol=5 * tolerance)


def test_examples_may_get_a_dimension_when_they_are_prepared() -> None:
    flat = made_up("mnist")
    stored = replace(
        flat,
        train=Examples(flat.train.inputs.flatten(1), flat.train.targets),
        prepare=lambda x: flat.prepare(x.view(-1, *flat.train.inputs.shape[1:])),
    )
    assert level_costs(stored, LADDER) == level_costs(flat, LADDER)


def test_weights_of_any_rank_may_stay_in_memory() -> None:
    layer = resident(torch.nn.Conv3d(2, 4, 3), torch.device("cpu"))
    assert layer.weight.shape == (4, 2, 3, 3, 3)
    for channels in (1, 2):  # of which one would fit both layouts, but the results would follow the other
        image = resident(torch.nn.Conv2d(channels, 4, 3), torch.device("cpu"))
        assert image.weight.stride() == (9 * channels, 1, 3 * channels, channels)


def flat_images(targets: Tensor) -> Examples:
    return Examples(torch.rand(len(targets), 1, 3, 3), targets)


FLAT = Axes.of({"hidden": 8}, {"1.weight": ("hidden", 9), "1.bias": ("hidden",), "2.weight": (3, "hidden")})


def flat_model(shape: Shape, inputs: int = 9, outputs: int = 3, hidden: int | None = None) -> nn.Module:
    width = shape["hidden"] if hidden is None else hidden
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Linear(width, outputs, bias=False))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"train": flat_images(torch.tensor([0, 3]))}, "train.targets is '0 to 3'; it must be 0 to 2"),
        ({"test": flat_images(torch.tensor([-1, 1]))}, "test.targets is '-1 to 1'; it must be 0 to 2"),
        ({"train": flat_images(torch.tensor([0.0, 1.0]))}, "train.targets is 'torch.float32'; it must be torch.int64"),
        ({"train": Examples(torch.rand(3, 1, 3, 3), torch.tensor([0]))}, "train.inputs is '3 examples'; it must be"),
        ({"train": Examples(np.zeros(3), torch.tensor([0]))}, "train.inputs is 'ndarray'; it must be a tensor"),
        ({"test": flat_images(torch.tensor([], dtype=torch.int64))}, "test examples is 0; it must be at least 1"),
        ({"classes": 4}, "classes is 4; it must be 3, as many as the model's outputs"),
        ({"prepare": lambda x: x.double()}, "returns is 'torch.float64'; it must be torch.float32"),
        ({"prepare": lambda x: x[..., :2]}, r"task 'own' fails at width 1 on torch.float32 \(1, 3, 2\)"),
        (
            {"build": lambda shape: flat_model(shape, hidden=8)},
            r"1.weight at width 0.5 is \(8, 9\); it must be \(4, 9\)",
        ),
        ({"build": lambda shape: flat_model(Shape({"other": 8}))}, "axis is 'hidden'; it must be one of other"),
        (
            {"axes": Axes.of({"hidden": 8}, {"1.weight": ("hidden", 9), "2.weight": (3, "hidden")})},
            "parameter 1.bias is in the model but not in the axes",
        ),
    ],
)
def test_mistakes_in_a_task_of_ones_own_are_named_before_a_run(changes: dict[str, Any], why: str) -> None:
    some = flat_images(torch.tensor([0, 1, 2, 0]))
    right = {"axes": FLAT, "build": flat_model, "train": some, "test": some, "classes": 3, "prepare": lambda x: x}
    assert len(level_costs(Task("own", **right), LADDER)) == LADDER.levels
    with pytest.raises(WhaleflError, match=why):
        level_costs(Task("own", **(right | changes)), LADDER)
