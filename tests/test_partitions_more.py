"""Data dealt out otherwise than by sigma: evenly, by Dirichlet, in whole groups, in blocks; and the picture of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from whalefl.config import Experiment, compose
from whalefl.errors import WhaleflError
from whalefl.execution import Job, execute
from whalefl.federation.methods import make_method
from whalefl.federation.ownership import ownership
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.weather import Weather
from whalefl.report.ownership import common_run, save_ownership_plot
from whalefl.report.page import write_report
from whalefl.rng import Seeds
from whalefl.runs import OWNERSHIP, RunFolder
from whalefl.subnet.axes import Axes
from whalefl.tasks.partition import Kind, Partition, Share, split
from whalefl.tasks.task import Examples, Shape, Task

Labels = NDArray[np.int64]
PNG = b"\x89PNG\r\n\x1a\n"

IID, CONTIGUOUS, GROUPS = Partition(kind="iid"), Partition(kind="contiguous"), Partition(kind="groups")

some_seeds = st.builds(Seeds, partition=st.integers(0, 999), assignment=st.integers(0, 999))


def dirichlet(alpha: float) -> Partition:
    return Partition(kind="dirichlet", alpha=alpha)


def labels_of(count: int, classes: int, seed: int = 0) -> Labels:
    return np.random.default_rng(seed).integers(classes, size=count)


def even(classes: int, each: int) -> Labels:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


def sizes(shares: Sequence[Share]) -> list[int]:
    return [len(share.indices) for share in shares]


def contents(shares: Sequence[Share]) -> list[tuple[int, ...]]:
    return [tuple(share.indices.tolist()) for share in shares]


def assert_everything_once(shares: Sequence[Share], count: int) -> None:
    assert sorted(np.concatenate([share.indices for share in shares]).tolist()) == list(range(count))


def assert_owned_is_what_is_there(shares: Sequence[Share], labels: Labels) -> None:
    for share in shares:
        assert share.owned == tuple(sorted({int(label) for label in labels[share.indices].ravel()}))


# --- even parts, blocks


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 25), st.sampled_from([IID, CONTIGUOUS]), some_seeds)
def test_even_parts_hold_everything_once_and_differ_by_at_most_one(
    data: st.DataObject, devices: int, partition: Partition, seeds: Seeds
) -> None:
    count, classes = data.draw(st.integers(devices, 200)), data.draw(st.integers(1, 8))
    labels = labels_of(count, classes)
    shares = split(partition, labels, classes, devices, seeds)
    assert len(shares) == devices
    assert_everything_once(shares, count)
    assert max(sizes(shares)) - min(sizes(shares)) <= 1
    assert_owned_is_what_is_there(shares, labels)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(25, 200), some_seeds)
def test_blocks_are_consecutive(devices: int, count: int, seeds: Seeds) -> None:
    for share in split(CONTIGUOUS, labels_of(count, 3), 3, devices, seeds):
        assert np.array_equal(share.indices, np.arange(share.indices[0], share.indices[0] + len(share.indices)))


def test_even_parts_are_shuffled() -> None:
    """In data sorted by class every device still has every class."""
    labels = np.repeat(np.arange(10), 100)
    assert all(share.owned == tuple(range(10)) for share in split(IID, labels, 10, 10, Seeds()))
    assert all(len(share.owned) == 1 for share in split(CONTIGUOUS, labels, 10, 10, Seeds()))


# --- Dirichlet


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(20, 60), min_size=2, max_size=8),
    st.integers(1, 8),
    st.floats(0.5, 1000),
    some_seeds,
)
def test_dirichlet_parts_hold_everything_once_and_two_examples_at_least(
    class_sizes: list[int], devices: int, alpha: float, seeds: Seeds
) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))
    shares = split(dirichlet(alpha), labels, len(class_sizes), devices, seeds)
    assert len(shares) == devices
    assert_everything_once(shares, len(labels))
    assert min(sizes(shares)) >= 2
    assert_owned_is_what_is_there(shares, labels)


def skew(shares: Sequence[Share], labels: Labels, classes: int) -> float:
    """The mean over devices of the total variation distance between a device's mix of classes and that of all data."""
    whole = np.bincount(labels, minlength=classes) / len(labels)
    mixes = [np.bincount(labels[s.indices], minlength=classes) / len(s.indices) for s in shares]
    return float(np.mean([np.abs(mix - whole).sum() / 2 for mix in mixes]))


@pytest.mark.parametrize("seed", range(5))
def test_the_smaller_alpha_the_more_skewed(seed: int) -> None:
    labels = even(10, 100)
    skews = [skew(split(dirichlet(a), labels, 10, 10, Seeds.all(seed)), labels, 10) for a in (0.1, 1.0, 10.0, 1000.0)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5 and skews[-1] < 0.1


def test_an_endless_alpha_is_an_even_part_of_every_class() -> None:
    labels = even(4, 50)
    for share in split(dirichlet(1e6), labels, 4, 5, Seeds()):
        assert all(9 <= count <= 11 for count in np.bincount(labels[share.indices], minlength=4))


def test_who_gets_which_example_of_a_class_is_left_to_chance() -> None:
    for share in split(dirichlet(1e6), np.zeros(100, dtype=np.int64), 1, 4, Seeds()):
        assert np.ptp(share.indices) > len(share.indices)  # not a run of neighbours


def test_draws_that_leave_a_device_with_less_than_two_examples_are_repeated() -> None:
    """With this alpha a single draw succeeds about once in sixteen times."""
    for seed in range(20):
        shares = split(dirichlet(0.1), even(10, 20), 10, 20, Seeds.all(seed))
        assert min(sizes(shares)) >= 2
        assert_everything_once(shares, 200)


def test_proportions_are_drawn_anew_for_every_class() -> None:
    labels = even(6, 50)
    mixes = [np.bincount(labels[s.indices], minlength=6) for s in split(dirichlet(0.5), labels, 6, 5, Seeds())]
    assert len({tuple(column) for column in np.array(mixes).T.tolist()}) == 6


def test_a_class_without_examples_is_nobodys() -> None:
    labels = even(4, 30)
    shares = split(dirichlet(1.0), labels, 6, 4, Seeds())
    assert_everything_once(shares, 120)
    assert {label for share in shares for label in share.owned} == {0, 1, 2, 3}


def test_devices_that_never_get_two_examples_are_refused_in_one_sentence() -> None:
    sentence = r"^partition.alpha is 0.001, which left one of 20 devices .* in all of \d+ draws; it must be larger, or "
    with pytest.raises(WhaleflError, match=sentence):
        split(dirichlet(0.001), even(10, 50), 10, 20, Seeds())


def test_fewer_than_two_examples_a_device_are_refused_before_any_draw() -> None:
    with pytest.raises(WhaleflError, match="^the number of examples is 30; it must be at least 40, 2 for each device$"):
        split(dirichlet(100.0), even(10, 3), 10, 20, Seeds())


# --- whole groups


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 12), some_seeds)
def test_groups_stay_whole_and_devices_are_balanced(data: st.DataObject, devices: int, seeds: Seeds) -> None:
    group_sizes = data.draw(st.lists(st.integers(1, 15), min_size=devices, max_size=40))
    names = np.random.default_rng(1).permutation(1000)[: len(group_sizes)]  # any numbers, in any order
    groups = np.random.default_rng(0).permutation(np.repeat(names, group_sizes))
    labels = labels_of(len(groups), 5)
    shares = split(GROUPS, labels, 5, devices, seeds, groups)
    assert len(shares) == devices
    assert_everything_once(shares, len(groups))
    assert_owned_is_what_is_there(shares, labels)
    owners = [set(groups[share.indices].tolist()) for share in shares]
    assert sum(len(own) for own in owners) == len(group_sizes)
    # Largest first to whoever has least: when a device got its last and smallest group, nobody had less than it.
    for share, own in zip(shares, owners, strict=True):
        smallest = min(int(np.sum(groups == name)) for name in own)
        assert len(share.indices) - smallest <= min(sizes(shares))


def test_groups_by_hand() -> None:
    groups = np.repeat([10, 20, 30, 40, 50], [7, 5, 4, 3, 1])
    shares = split(GROUPS, np.zeros(20, dtype=np.int64), 1, 2, Seeds(), groups)
    # 7 | 5, then 4 to the second (9), 3 to the first (10), 1 to the second (10).
    assert {frozenset(groups[share.indices].tolist()) for share in shares} == {
        frozenset({10, 40}),
        frozenset({20, 30, 50}),
    }


def dealt_groups(group_sizes: list[int], devices: int) -> set[frozenset[frozenset[int]]]:
    """All ways in which twenty seeds deal groups 0, 1, 2 ... of these sizes out."""
    groups = np.repeat(np.arange(len(group_sizes)), group_sizes)
    dealt = [split(GROUPS, np.zeros_like(groups), 1, devices, Seeds.all(seed), groups) for seed in range(20)]
    return {frozenset(frozenset(groups[share.indices].tolist()) for share in shares) for shares in dealt}


def test_equally_large_groups_and_equally_loaded_devices_are_chosen_by_chance() -> None:
    # 3 | 2, 2 | and the third of the equal groups joins the first.
    assert dealt_groups([3, 2, 2, 2], 2) == {
        frozenset({frozenset({0, late}), frozenset({1, 2, 3} - {late})}) for late in (1, 2, 3)
    }
    # 6 | 4, 2 | and the last may go to either.
    assert dealt_groups([6, 4, 2, 1], 2) == {
        frozenset({frozenset({0, 3}), frozenset({1, 2})}),
        frozenset({frozenset({0}), frozenset({1, 2, 3})}),
    }


def test_fewer_groups_than_devices_are_refused() -> None:
    with pytest.raises(WhaleflError, match="^the number of groups is 3; it must be at least 4, one for each device$"):
        split(GROUPS, labels_of(30, 2), 2, 4, Seeds(), np.arange(30) % 3)


def test_a_task_without_groups_is_refused_in_a_sentence_that_says_so() -> None:
    sentence = "^partition.kind is 'groups', but this task does not say which group .*; it must be one of sigma, iid, "
    with pytest.raises(WhaleflError, match=sentence):
        split(GROUPS, labels_of(30, 2), 2, 4, Seeds())


def test_groups_must_be_named_for_every_example() -> None:
    with pytest.raises(WhaleflError, match="^the length of task.groups is 29; it must be 30, one for each example$"):
        split(GROUPS, labels_of(30, 2), 2, 4, Seeds(), np.arange(29))


# --- texts: a row of labels for each example


@pytest.mark.parametrize("partition", [IID, CONTIGUOUS, GROUPS], ids=lambda p: p.kind)
def test_the_words_of_a_text_are_owned_where_they_occur(partition: Partition) -> None:
    labels = np.random.default_rng(0).integers(500, size=(60, 7))
    shares = split(partition, labels, 500, 6, Seeds(), np.arange(60) // 5)
    assert_everything_once(shares, 60)
    assert_owned_is_what_is_there(shares, labels)
    assert all(len(share.owned) > 7 for share in shares)


@pytest.mark.parametrize("kind", ["sigma", "dirichlet"])
def test_texts_cannot_be_dealt_by_class(kind: Kind) -> None:
    sentence = f"^partition.kind is '{kind}'; it must be iid, groups or contiguous for a task with several labels in an"
    with pytest.raises(WhaleflError, match=sentence):
        split(Partition(kind=kind), np.zeros((60, 7), dtype=np.int64), 5, 4, Seeds())


# --- seeds


WAYS = [Partition(), IID, dirichlet(0.5), GROUPS, CONTIGUOUS]


def deal(partition: Partition, seeds: Seeds) -> list[tuple[int, ...]]:
    return contents(split(partition, even(4, 50), 4, 8, seeds, np.arange(200) // 5))


@pytest.mark.parametrize("partition", WAYS, ids=lambda p: p.kind)
def test_seeds_repeat_and_the_assignment_seed_only_moves_shares(partition: Partition) -> None:
    dealt = [deal(partition, Seeds(partition=7, assignment=seed)) for seed in (0, 1, 2)]
    assert dealt[0] == deal(partition, Seeds(partition=7, assignment=0, training=9, weights=9, weather=9))
    assert all(sorted(shares) == sorted(dealt[0]) for shares in dealt)
    assert len({tuple(shares) for shares in dealt}) == 3


@pytest.mark.parametrize("partition", WAYS, ids=lambda p: p.kind)
def test_partition_seeds_cut_differently_except_where_nothing_is_left_to_chance(partition: Partition) -> None:
    cuts = {frozenset(deal(partition, Seeds(partition=seed))) for seed in range(5)}
    assert len(cuts) == (1 if partition.kind == "contiguous" else 5)


# --- settings


def test_a_kind_and_its_alpha_can_be_configured() -> None:
    partition = compose([{"partition": {"kind": "dirichlet", "alpha": 0.1}}]).partition
    assert partition == Partition(kind="dirichlet", alpha=0.1, sigma=2)
    assert compose([]).partition == Partition() == Partition(2, "sigma", 0.5)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(WhaleflError, match=r"^kind is 'grups'; it must be one of .* \(did you mean 'groups'\?\)$"):
        Partition(kind="grups")  # type: ignore[arg-type]
    with pytest.raises(WhaleflError, match="^partition.kind is 'grups'; it must be 'sigma', 'iid', "):
        compose([{"partition": {"kind": "grups"}}])


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e7])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(WhaleflError, match=f"^alpha is {alpha}; it must be above 0 and at most 1e6$"):
        dirichlet(alpha)


# --- who owns what, in the run folder


def assembled_ownership(task: Task, partition: Partition, kinds: tuple[str, ...]) -> dict[str, Any]:
    fleet = Fleet(tuple(DeviceGroup(kind, 2) for kind in kinds))
    federation = assemble(task, make_method("fedavg"), fleet, Weather(), Settings(partition=partition), Seeds())
    content: dict[str, Any] = json.loads(json.dumps(ownership(federation)))
    return content


def made_up_text() -> Task:
    """Five words a piece of 1,000; what the model makes of them does not matter here."""
    words = torch.from_numpy(np.random.default_rng(0).integers(1000, size=(160, 5)))
    axes = Axes.of({"width": 8}, {"0.weight": (1000, "width"), "1.weight": (1000, "width"), "1.bias": (1000,)})

    def build(shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Embedding(1000, shape["width"]), nn.Linear(shape["width"], 1000))

    pieces = Examples(words, words)
    return Task("text", axes, build, pieces, pieces, classes=1000, prepare=lambda x: x)


def test_ownership_counts_every_class_of_every_device(corners: Task) -> None:
    content = assembled_ownership(corners, Partition(2), ("JetsonNano", "RaspberryPi4"))
    assert (content["task"], content["classes"]) == ("corners", 4)
    assert [(d["device"], d["kind"]) for d in content["devices"]] == [
        (0, "JetsonNano"),
        (1, "JetsonNano"),
        (2, "RaspberryPi4"),
        (3, "RaspberryPi4"),
    ]
    for device in content["devices"]:
        assert sorted(device["counts"]) == [0, 0, 20, 20]
        assert (device["examples"], device["labels"]) == (40, 2)
    assert np.sum([d["counts"] for d in content["devices"]], axis=0).tolist() == [40] * 4


def test_ownership_of_a_text_is_only_its_size_and_its_words() -> None:
    task = made_up_text()
    content = assembled_ownership(task, CONTIGUOUS, ("JetsonNano", "RaspberryPi4"))
    assert content["classes"] == 1000
    blocks = sorted(len(np.unique(task.train.targets[start : start + 40])) for start in range(0, 160, 40))
    assert sorted(device["labels"] for device in content["devices"]) == blocks
    for device in content["devices"]:
        assert set(device) == {"device", "kind", "examples", "labels"}
        assert device["examples"] == 40


def test_a_task_with_groups_is_dealt_by_them(corners: Task) -> None:
    people = np.repeat(np.arange(4), [70, 50, 30, 10])
    content = assembled_ownership(replace(corners, groups=people), GROUPS, ("JetsonNano",))
    assert [device["examples"] for device in content["devices"]] == [80, 80]


# --- its picture


def save(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / OWNERSHIP).write_text(json.dumps(content), encoding="utf8")
    return folder


@pytest.mark.parametrize("partition", [dirichlet(0.5), CONTIGUOUS], ids=lambda p: p.kind)
def test_a_picture_of_classes(corners: Task, partition: Partition, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", assembled_ownership(corners, partition, ("JetsonNano", "RaspberryPi4")))
    assert save_ownership_plot(folder) == "ownership.png"
    assert (folder / "ownership.png").read_bytes().startswith(PNG)


def test_a_picture_of_texts(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", assembled_ownership(made_up_text(), IID, ("JetsonNano", "RaspberryPi4")))
    save_ownership_plot(folder)
    assert (folder / "ownership.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(("devices", "classes"), [(80, 4), (3, 100), (1, 1)])
def test_pictures_of_many_and_of_few(devices: int, classes: int, tmp_path: Path) -> None:
    rows = [{"device": i, "kind": "Pi", "examples": 9, "labels": 1, "counts": [9] * classes} for i in range(devices)]
    folder = save(tmp_path / "run", {"task": "many", "classes": classes, "devices": rows})
    save_ownership_plot(folder)
    assert (folder / "ownership.png").read_bytes().startswith(PNG)


def test_a_comparison_shows_the_picture_only_where_all_its_methods_share_the_data(tmp_path: Path) -> None:
    def stored(name: str, examples: int | None) -> RunFolder:
        rows = [{"device": 0, "kind": "Pi", "examples": examples, "labels": 1, "counts": [examples]}]
        if examples is None:
            (tmp_path / name).mkdir()
            return RunFolder(tmp_path / name)
        return RunFolder(save(tmp_path / name, {"task": "one", "classes": 1, "devices": rows}))

    first, alike, unlike, without = stored("a", 5), stored("b", 5), stored("c", 6), stored("d", None)
    assert common_run({"fedavg": {0: first}}) == first.path
    assert common_run({"fedavg": {0: first, 1: unlike}, "whale": {0: alike, 1: unlike}}) == first.path
    assert common_run({"sigma=2": {0: first}, "sigma=3": {0: unlike}}) is None
    assert common_run({"fedavg": {0: first}, "whale": {0: without}}) is None


def test_a_run_leaves_its_ownership_and_its_page_shows_it(tmp_path: Path) -> None:
    fleet = Fleet((DeviceGroup("JetsonNano", 2), DeviceGroup("RaspberryPi4", 1)))
    experiment = Experiment(method="heterofl", rounds=1, fleet=fleet, partition=dirichlet(1.0))
    run = execute(Job("one", experiment, tmp_path / "run", "whalefl run digits"), lambda name, record: None)
    content = json.loads((run.path / OWNERSHIP).read_text(encoding="utf8"))
    assert [device["kind"] for device in content["devices"]] == ["JetsonNano", "JetsonNano", "RaspberryPi4"]
    assert np.shape([device["counts"] for device in content["devices"]]) == (3, 10)
    write_report(run.path, {"heterofl": {0: run}}, None, "whalefl run digits")
    assert "](ownership.png)" in (run.path / "report.md").read_text(encoding="utf8")
    assert (run.path / "ownership.png").read_bytes().startswith(PNG)
