"""Axes, plans, slices and their average, against brute force over single coordinates."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whalefl.errors import WhaleflError
from whalefl.subnet.aggregation import Contribution, PartialSums, count_devices, split_flat
from whalefl.subnet.axes import Axes, Plan, Segment, Whole
from whalefl.subnet.coverage import count_shares, cover, never_trained
from whalefl.subnet.plans import EXTRACTIONS, Extraction, Prefix, Random, Rolling, kept
from whalefl.subnet.slicing import cut, inside, plan_index, put_back, sliced_axes

LABELS = 3


@st.composite
def axes_of_models(draw: st.DrawFn) -> Axes:
    """Random models: plain, tiled, flattened and concatenated dimensions, scalars, and label rows."""
    sizes = {name: draw(st.integers(1, 6)) for name in ("a", "b", "c")}
    part = st.one_of(
        st.builds(Whole, st.integers(1, 3)),
        st.builds(Segment, st.sampled_from(sorted(sizes)), st.integers(1, 3), st.integers(1, 3)),
    )
    dimension = st.lists(part, min_size=1, max_size=2).map(tuple)
    parameters = {
        f"p{i}": tuple(draw(st.lists(dimension, min_size=0, max_size=3))) for i in range(draw(st.integers(1, 3)))
    }
    labels = {}
    if draw(st.booleans()):
        parameters["head"] = ((Whole(LABELS),), draw(dimension))
        labels["head"] = 0
    return Axes(sizes, parameters, labels)


def any_plan(draw: st.DrawFn, axes: Axes) -> Plan:
    """Some indices of every axis: what an extraction makes, or any sorted choice at all."""
    if draw(st.booleans()):
        extraction = EXTRACTIONS[draw(st.sampled_from(sorted(EXTRACTIONS)))]
        width = draw(st.sampled_from([1.0, 0.5, 0.25, 0.3]))
        return extraction.plan(axes, width, draw(st.integers(0, 9)), draw(st.integers(0, 9)), 0)
    return {
        axis: np.array(sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))), dtype=np.int64)
        for axis, size in axes.sizes.items()
    }


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Axes, list[Contribution]]:
    axes = draw(axes_of_models())
    owned = st.none() | st.sets(st.integers(0, LABELS - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    contributions = [
        Contribution(any_plan(draw, axes), draw(owned), draw(st.sampled_from([1.0, 2.0, 7.0])))
        for _ in range(draw(st.integers(1, 5)))
    ]
    return axes, contributions


def keeps(axes: Axes, name: str, contribution: Contribution, coordinate: tuple[int, ...]) -> bool:
    """Whether a device trains one coordinate: by the definition, one position at a time."""
    for d, (position, dimension) in enumerate(zip(coordinate, axes.parameters[name], strict=True)):
        if not keeps_position(axes, dimension, contribution.plan, position):
            return False
        if axes.labels.get(name) == d and contribution.owned is not None and position not in contribution.owned:
            return False
    return True


def keeps_position(axes: Axes, dimension: tuple[Segment | Whole, ...], plan: Plan, position: int) -> bool:
    for part in dimension:
        length = part.size if isinstance(part, Whole) else part.outer * axes.sizes[part.axis] * part.inner
        if position < length:
            return isinstance(part, Whole) or position // part.inner % axes.sizes[part.axis] in plan[part.axis]
        position -= length
    raise AssertionError("position beyond the dimension")


def random_weights(axes: Axes, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in axes.shapes.items()}


@settings(max_examples=150, deadline=None)
@given(rounds(), st.randoms(use_true_random=False))
def test_aggregation_equals_a_loop_over_coordinates(case: tuple[Axes, list[Contribution]], shuffler) -> None:
    axes, contributions = case
    weights = random_weights(axes, 0)
    trained = [random_weights(axes, 1 + i) for i in range(len(contributions))]
    sums = PartialSums(axes)
    order = list(range(len(contributions)))
    shuffler.shuffle(order)
    for i in order:
        sums.add(contributions[i], cut(axes, trained[i], contributions[i].plan))
    new = sums.average(weights, count_devices(axes, contributions))
    for name, shape in axes.shapes.items():
        for at in product(*(range(n) for n in shape)):
            members = [i for i, c in enumerate(contributions) if keeps(axes, name, c, at)]
            total = sum(contributions[i].weight for i in members)
            if members:
                mean = sum(contributions[i].weight * float(trained[i][name][at]) for i in members) / total
                assert float(new[name][at]) == pytest.approx(mean, rel=1e-6, abs=1e-7)
            else:
                assert float(new[name][at]) == float(weights[name][at])


@settings(max_examples=100, deadline=None)
@given(rounds())
def test_merged_sums_equal_one_sum(case: tuple[Axes, list[Contribution]]) -> None:
    axes, contributions = case
    weights = random_weights(axes, 0)
    whole, left, right = PartialSums(axes), PartialSums(axes), PartialSums(axes)
    for i, contribution in enumerate(contributions):
        piece = cut(axes, random_weights(axes, 1 + i), contribution.plan)
        whole.add(contribution, piece)
        (left if i % 2 else right).add(contribution, piece)
    left.merge(right)
    counts = count_devices(axes, contributions)
    for name, tensor in whole.average(weights, counts).items():
        assert torch.equal(tensor, left.average(weights, counts)[name])


@settings(max_examples=100, deadline=None)
@given(rounds())
def test_coverage_equals_a_loop_over_coordinates(case: tuple[Axes, list[Contribution]]) -> None:
    axes, contributions = case
    counts: dict[int, int] = {}
    classes: dict[int, int] = {}
    for name, shape in axes.shapes.items():
        for at in product(*(range(n) for n in shape)):
            members = [c for c in contributions if keeps(axes, name, c, at)]
            counts[len(members)] = counts.get(len(members), 0) + 1
            seen = {label for c in members for label in c.owned or ()}
            classes[len(members)] = classes.get(len(members), 0) + len(seen)
    all_owned = all(c.owned is not None for c in contributions)
    touched = count_devices(axes, contributions)
    coverage, last = cover(axes, contributions, touched, never_trained(axes), 3)
    assert sorted(counts) == [share.devices for share in coverage.counts]
    for share in coverage.counts:
        assert share.share == pytest.approx(counts[share.devices] / axes.count)
        expected = classes[share.devices] / counts[share.devices] if all_owned else None
        assert share.classes == pytest.approx(expected)
    assert coverage.least == min((n for n in counts if n > 0), default=0)
    assert coverage.untouched == pytest.approx(counts.get(0, 0) / axes.count)
    assert coverage.mean_age == pytest.approx(3 * counts.get(0, 0) / axes.count)
    assert coverage.oldest_age == (3 if counts.get(0) else 0)
    assert all(torch.equal(last[name] == 3, touched[name] > 0) for name in last)


def test_ages_grow_where_nobody_trains_and_restart_where_someone_does() -> None:
    axes = Axes.of({"n": 4}, {"w": ("n",)})
    full, half = (Contribution({"n": np.arange(k)}, (0,)) for k in (4, 2))
    last = never_trained(axes)
    ages = []
    for number, contribution in enumerate([full, half, half, full], start=1):
        coverage, last = cover(axes, [contribution], count_devices(axes, [contribution]), last, number)
        ages.append((coverage.mean_age, coverage.oldest_age))
    assert ages == [(0.0, 0), (0.5, 1), (1.0, 2), (0.0, 0)]


@settings(max_examples=150, deadline=None)
@given(rounds())
def test_cut_then_put_back_is_the_identity(case: tuple[Axes, list[Contribution]]) -> None:
    axes, contributions = case
    weights, other = random_weights(axes, 0), random_weights(axes, 1)
    plan = contributions[0].plan
    piece = cut(axes, weights, plan)
    same = put_back(axes, weights, plan, piece)
    assert all(torch.equal(same[name], weights[name]) for name in weights)
    moved = put_back(axes, other, plan, piece)
    again = cut(axes, moved, plan)
    assert all(torch.equal(again[name], piece[name]) for name in piece)
    assert sum(tensor.numel() for tensor in piece.values()) == axes.slice_count(plan)


def test_cut_copies() -> None:
    axes = Axes.of({"n": 4}, {"w": ("n",)})
    weights = {"w": torch.zeros(4)}
    cut(axes, weights, {"n": np.arange(2)})["w"] += 1
    assert weights["w"].sum() == 0


@settings(max_examples=60, deadline=None)
@given(axes_of_models(), st.integers(0, 50), st.integers(0, 5), st.sampled_from(sorted(EXTRACTIONS)))
def test_plans_are_nested_sorted_and_of_the_right_size(axes: Axes, number: int, device: int, name: str) -> None:
    plans = [EXTRACTIONS[name].plan(axes, width, number, device, 0) for width in (1.0, 0.5, 0.25, 0.125)]
    for wide, narrow in zip(plans, plans[1:], strict=False):
        assert all(set(narrow[axis]) <= set(wide[axis]) for axis in axes.sizes)
        relative = inside(wide, narrow)
        assert all((wide[axis][relative[axis]] == narrow[axis]).all() for axis in axes.sizes)
    for plan, width in zip(plans, (1.0, 0.5, 0.25, 0.125), strict=True):
        for axis, size in axes.sizes.items():
            assert len(plan[axis]) == kept(size, width) == len(set(plan[axis]))
            assert (np.sort(plan[axis]) == plan[axis]).all()


def test_prefix_plans_depend_on_the_width_alone() -> None:
    axes = Axes.of({"n": 8}, {"w": ("n",)})
    assert Prefix().plan(axes, 0.5, 1, 2, 3)["n"].tolist() == [0, 1, 2, 3]
    assert Prefix().plan(axes, 0.5, 9, 8, 7)["n"].tolist() == [0, 1, 2, 3]


def test_rolling_moves_by_one_and_visits_every_index_equally_often() -> None:
    axes = Axes.of({"n": 7, "m": 3}, {"w": ("n", "m")})
    assert Rolling().plan(axes, 0.5, 5, 0, 0)["n"].tolist() == [0, 1, 5, 6]
    visits = np.zeros(7, dtype=int)
    for number in range(7):
        visits[Rolling().plan(axes, 0.5, number, 0, 0)["n"]] += 1
    assert (visits == 4).all()


def test_random_draws_differ_by_device_and_round_and_visit_everything() -> None:
    axes = Axes.of({"n": 16}, {"w": ("n",)})
    draws = {tuple(Random().plan(axes, 0.5, r, d, 0)["n"]) for r in range(6) for d in range(4)}
    assert len(draws) > 20
    assert {index for draw in draws for index in draw} == set(range(16))


def test_dimensions_that_share_an_axis_are_cut_alike() -> None:
    # A residual sum and queries with keys: heads kept, the dimensions of each head cut, in both alike.
    axes = Axes.of({"head": 4, "d": 6}, {"q": (Segment("head", outer=2), "d"), "k": (Segment("head", outer=2), "d")})
    for extraction in (Random(), Rolling(), Prefix()):
        positions = axes.parameter_positions(extraction.plan(axes, 0.5, 3, 1, 0))
        assert all((a == b).all() for a, b in zip(positions["q"], positions["k"], strict=True))
        heads = positions["q"][0]
        assert (heads[:2] + 4 == heads[2:]).all()


@pytest.mark.parametrize(("size", "width", "count"), [(10, 0.25, 3), (30, 0.1, 3), (64, 0.0625, 4), (3, 0.0625, 1)])
def test_kept_rounds_up_and_keeps_at_least_one(size: int, width: float, count: int) -> None:
    assert kept(size, width) == count


def test_devices_that_tell_their_labels_and_devices_that_do_not_are_averaged_together() -> None:
    axes = Axes.of({"n": 2}, {"w": (3, "n")}, labels={"w": 0})
    plan = Prefix().plan(axes, 1.0, 0, 0, 0)
    contributions = [Contribution(plan, (0,)), Contribution(plan, None)]
    for order in (contributions, contributions[::-1]):
        sums = PartialSums(axes)
        sums.add_all(order, [{"w": torch.ones(3, 2)}] * 2)
        assert torch.equal(sums.average({"w": torch.zeros(3, 2)}, count_devices(axes, order))["w"], torch.ones(3, 2))


def test_sliced_axes_describe_the_slice() -> None:
    axes = Axes.of({"n": 8}, {"w": (Segment("n", inner=2), 3)})
    plan = Prefix().plan(axes, 0.5, 0, 0, 0)
    assert sliced_axes(axes, plan).shapes == {"w": (8, 3)}
    assert axes.shapes == {"w": (16, 3)}


def test_count_shares_of_a_prefix_round_need_few_cells() -> None:
    axes = Axes.of({"n": 512, "m": 512}, {"w": ("n", "m", 3, 3)})
    rounds_of = [Contribution(Prefix().plan(axes, 0.5**level, 0, 0, 0), (level,)) for level in range(5)]
    shares = count_shares(axes, rounds_of)
    assert [(s.devices, s.classes) for s in shares] == [(n, float(n)) for n in range(1, 6)]
    assert shares[-1].share == pytest.approx(1 / 256)


def test_axes_must_fit_the_model() -> None:
    axes = Axes.of({"n": 4}, {"w": ("n", 3)})
    axes.check({"w": (4, 3)})
    with pytest.raises(WhaleflError, match=r"parameter w has the shape \(4, 2\) in the model and \(4, 3\)"):
        axes.check({"w": (4, 2)})
    with pytest.raises(WhaleflError, match="parameter bias"):
        axes.check({"w": (4, 3), "bias": (4,)})


def test_wrong_declarations_are_named() -> None:
    with pytest.raises(WhaleflError, match="axis 'm', which has no size"):
        Axes.of({"n": 4}, {"w": ("m",)})
    with pytest.raises(WhaleflError, match="never cut"):
        Axes.of({"n": 4}, {"w": ("n",)}, labels={"w": 0})
    with pytest.raises(WhaleflError, match="outer is 0"):
        Segment("n", outer=0)


@pytest.mark.parametrize("extraction", EXTRACTIONS.values(), ids=lambda e: e.name)
def test_the_gpu_finds_every_number_of_a_slice_in_the_flat_model(extraction: Extraction) -> None:
    """Channels of convolutions come last in a slot; a parameter without dimensions has one place."""
    from whalefl.federation.graphs import Aim, Span

    axes = Axes.of({"a": 5, "b": 7}, {"w": ("b", "a", 3, 3), "v": (2, "b"), "s": (), "u": ("a",)})
    plan = extraction.plan(axes, 0.5, 3, 1, 0)
    whole = split_flat(axes, torch.arange(axes.count))
    expected, spans, start = [], {}, 0
    for name, index in plan_index(axes, plan).items():
        piece = whole[name][index]
        rows = piece.permute(0, 2, 3, 1) if piece.ndim == 4 else piece
        spans[name] = Span(start, start + rows.numel(), rows.shape, piece.ndim == 4)
        start += rows.numel()
        expected.append(rows.flatten())
    assert torch.equal(Aim(axes, plan, spans, torch.device("cpu")).at(plan), torch.cat(expected))
