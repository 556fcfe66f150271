"""Who owns which examples: exactly sigma classes each, evenly, nothing lost and nothing twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from whalefl.errors import WhaleflError
from whalefl.rng import Seeds
from whalefl.tasks.partition import Partition, Share, split

Labels = NDArray[np.int64]


def shuffled(sizes: list[int], seed: int = 0) -> Labels:
    """A training set with so many examples of each class, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def even(classes: int, each: int) -> Labels:
    return shuffled([each] * classes)


def owners(shares: tuple[Share, ...], classes: int) -> list[int]:
    counts = Counter(label for share in shares for label in share.owned)
    return [counts[label] for label in range(classes)]


def contents(shares: tuple[Share, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(share.owned, tuple(share.indices.tolist())) for share in shares]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, list[int], Seeds]:
    """Classes, sigma, devices, class sizes with something for everyone, and seeds."""
    classes = draw(st.integers(1, 12))
    sigma = draw(st.integers(1, classes))
    devices = draw(st.integers(1, 25))
    sizes = draw(st.lists(st.integers(devices, devices + 40), min_size=classes, max_size=classes))
    seeds = Seeds(partition=draw(st.integers(0, 999)), assignment=draw(st.integers(0, 999)))
    return classes, sigma, devices, sizes, seeds


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_every_device_owns_sigma_classes_and_classes_are_owned_evenly(
    case: tuple[int, int, int, list[int], Seeds],
) -> None:
    classes, sigma, devices, sizes, seeds = case
    shares = split(Partition(sigma), shuffled(sizes), classes, devices, seeds)
    assert len(shares) == devices
    for share in shares:
        assert len(set(share.owned)) == len(share.owned) == sigma
        assert set(share.owned) <= set(range(classes))
    counts = owners(shares, classes)
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == devices * sigma


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_no_example_is_given_twice_and_all_of_owned_classes_are_given(
    case: tuple[int, int, int, list[int], Seeds],
) -> None:
    classes, sigma, devices, sizes, seeds = case
    labels = shuffled(sizes)
    shares = split(Partition(sigma), labels, classes, devices, seeds)
    given_out = np.concatenate([share.indices for share in shares])
    assert len(np.unique(given_out)) == len(given_out)
    owned = {label for share in shares for label in share.owned}
    assert set(given_out.tolist()) == set(np.flatnonzero(np.isin(labels, sorted(owned))).tolist())


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_a_device_has_examples_of_just_its_classes_and_an_even_part_of_each(
    case: tuple[int, int, int, list[int], Seeds],
) -> None:
    classes, sigma, devices, sizes, seeds = case
    labels = shuffled(sizes)
    shares = split(Partition(sigma), labels, classes, devices, seeds)
    parts: dict[int, list[int]] = {}
    for share in shares:
        held = Counter(labels[share.indices].tolist())
        assert set(held) == set(share.owned)
        for label, count in held.items():
            parts.setdefault(label, []).append(count)
    assert all(max(counts) - min(counts) <= 1 for counts in parts.values())


def test_har_twenty_devices_with_two_of_six_classes() -> None:
    shares = split(Partition(2), even(6, 100), 6, 20, Seeds())
    assert all(len(share.owned) == 2 for share in shares)
    assert sorted(owners(shares, 6)) == [6, 6, 7, 7, 7, 7]  # 40 places over 6 classes
    assert sum(len(share.indices) for share in shares) == 600


def test_mnist_twenty_devices_with_two_of_ten_classes_have_four_owners_each() -> None:
    shares = split(Partition(2), even(10, 60), 10, 20, Seeds.all(3))
    assert owners(shares, 10) == [4] * 10
    assert {len(share.indices) for share in shares} == {30}


def test_sigma_of_all_classes_gives_everyone_the_same_mixture() -> None:
    labels = even(10, 40)
    for share in split(Partition(10), labels, 10, 20, Seeds()):
        assert share.owned == tuple(range(10))
        assert np.bincount(labels[share.indices]).tolist() == [2] * 10


def test_classes_that_nobody_can_own_are_left_out_and_the_rest_is_complete() -> None:
    labels = even(10, 5)
    shares = split(Partition(2), labels, 10, 3, Seeds())
    assert sorted(owners(shares, 10)) == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert sum(len(share.indices) for share in shares) == 30


def test_the_pairing_of_classes_varies_with_chance() -> None:
    pairs = {share.owned for seed in range(20) for share in split(Partition(2), even(4, 20), 4, 6, Seeds.all(seed))}
    assert pairs == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


# --- seeds


def test_the_same_seeds_give_the_same_shares() -> None:
    labels = even(10, 60)
    first, second = (contents(split(Partition(2), labels, 10, 20, Seeds.all(5))) for _ in range(2))
    assert first == second


def test_different_partition_seeds_cut_the_data_differently() -> None:
    labels = even(10, 60)
    cuts = {
        frozenset(contents(split(Partition(2), labels, 10, 20, Seeds(partition=seed, assignment=0))))
        for seed in range(8)
    }
    assert len(cuts) == 8


def test_even_where_all_own_all_classes_the_partition_seed_decides_who_has_which_example() -> None:
    labels = even(4, 30)
    one, other = (split(Partition(4), labels, 4, 5, Seeds(partition=seed)) for seed in (0, 1))
    assert not {share.indices.tobytes() for share in one} & {share.indices.tobytes() for share in other}


def test_the_assignment_seed_hands_the_same_shares_to_other_devices() -> None:
    labels = even(10, 60)
    dealt = [contents(split(Partition(2), labels, 10, 20, Seeds(partition=7, assignment=s))) for s in range(5)]
    assert all(sorted(shares) == sorted(dealt[0]) for shares in dealt)
    assert len({tuple(shares) for shares in dealt}) == 5


def test_no_other_seed_moves_an_example() -> None:
    labels = even(10, 60)
    base = Seeds(partition=2, assignment=3)
    other = replace(base, training=9, weights=9, weather=9)
    assert contents(split(Partition(2), labels, 10, 20, base)) == contents(split(Partition(2), labels, 10, 20, other))


# --- errors


def test_more_classes_than_there_are_is_refused() -> None:
    with pytest.raises(WhaleflError, match="^sigma is 11; it must be at most 10, the number of classes$"):
        split(Partition(11), even(10, 30), 10, 20, Seeds())


@pytest.mark.parametrize("sigma", [0, -2])
def test_a_device_without_classes_is_refused(sigma: int) -> None:
    with pytest.raises(WhaleflError, match=f"^sigma is {sigma}; it must be at least 1$"):
        Partition(sigma)


def test_a_device_that_would_have_no_examples_is_refused() -> None:
    with pytest.raises(WhaleflError, match="^the examples of .*at least 1: use fewer devices$"):
        split(Partition(1), even(2, 3), 2, 20, Seeds())
