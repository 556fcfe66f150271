"""The controls: levels that other devices chose, rounds that do not wait, and a validation set nobody trains on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

from made_up import made_up
from whalefl.config import compose
from whalefl.errors import WhaleflError
from whalefl.federation.engine import PlainEngine
from whalefl.federation.evaluation import EvaluationSettings
from whalefl.federation.methods import make_method
from whalefl.federation.rounds import close_round, open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, first_state, simulate
from whalefl.federation.training import Training
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.weather import Weather
from whalefl.rng import Seeds
from whalefl.scheduling.policies import Announcement, Policy, uniform
from whalefl.scheduling.replay import ReplaySettings, drawn, levels_of_line, line_of_levels, permuted, replay_of
from whalefl.tasks.digits import digits
from whalefl.tasks.task import Task
from whalefl.tasks.validation import SHARE, held_out, with_validation
from whalefl.values import Conditions, Delay, Profile

TABLE = ((1, 2, 3, 4, 5, 5), (5, 5, 5, 5, 1, 1), (2, 2, 2, 3, 3, 1))
HERE = Conditions("lte", 20.0, 20.0, 1.0, 1000.0)
TIMES = [Delay(1.0, 1.0)] * 5
SETTINGS = Settings(rounds=3, training=Training(iterations=2, batch=8, lr=0.05))


def level(policy: Policy, round: int, device: int) -> int:
    profile = Profile(device, "JetsonNano", fixed_level=4, widest_level=1, batches=10)
    return policy.choose(Announcement(round), profile, HERE, TIMES, ()).level


def levels(policy: Policy, round: int) -> list[int]:
    return [level(policy, round, device) for device in range(6)]


# --- levels of another run


def test_permuting_keeps_the_levels_of_every_round_and_not_who_has_them() -> None:
    policy = permuted(TABLE, seed=1)
    for number, row in enumerate(TABLE, start=1):
        assert Counter(levels(policy, number)) == Counter(row)
    assert levels(policy, 1) != list(TABLE[0])
    assert levels(policy, 1) == levels(permuted(TABLE, seed=1), 1)
    assert levels(policy, 1) != levels(permuted(TABLE, seed=2), 1)


def test_the_last_round_is_dealt_out_again_when_rounds_run_out() -> None:
    policy = permuted(TABLE, seed=1)
    later = [levels(policy, number) for number in range(4, 12)]
    assert all(Counter(row) == Counter(TABLE[-1]) for row in later)
    assert len({tuple(row) for row in later}) > 1


def test_drawn_levels_have_the_tables_histogram() -> None:
    policy, rounds = drawn(TABLE, seed=0), 500
    seen = Counter(one for number in range(rounds) for one in levels(policy, number))
    wanted = Counter(one for row in TABLE for one in row)
    for one, count in wanted.items():
        share = count / wanted.total()
        # three standard deviations of a share over 3,000 draws
        assert seen[one] / seen.total() == pytest.approx(share, abs=3 * (share * (1 - share) / 3000) ** 0.5)


def test_a_file_of_levels_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "levels.txt"
    path.write_text("\n".join(line_of_levels(row) for row in TABLE) + "\n")
    policy = replay_of(ReplaySettings(str(path)), seed=1)
    assert [levels(policy, n) for n in (1, 2, 3)] == [levels(permuted(TABLE, 1), n) for n in (1, 2, 3)]
    assert levels_of_line(line_of_levels([1, None, 12])) == (1, 12)
    experiment = compose([{"method": "prefix+replay", "replay": {"file": str(path), "order": "drawn"}}])
    assert experiment.make_method().policy.name == "replay"


@pytest.mark.parametrize("content", [None, "", "12?"])
def test_a_file_that_holds_no_levels_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "levels.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(WhaleflError, match="replay.file is"):
        replay_of(ReplaySettings(str(path)), seed=0)


def test_replaying_without_a_file_or_with_too_few_devices_is_refused() -> None:
    with pytest.raises(WhaleflError, match="needs a file"):
        make_method("prefix+replay")
    with pytest.raises(WhaleflError, match="below 6"):
        level(permuted(TABLE, 0), 1, 6)


def test_levels_drawn_once_stay_and_others_do_not() -> None:
    once, always = uniform(0, once=True), uniform(0)
    assert levels(once, 1) == levels(once, 2) == levels(once, 9)
    assert levels(always, 1) != levels(always, 2)
    assert {level(once, 1, device) for device in range(100)} == {1, 2, 3, 4, 5}
    assert make_method("prefix+random-once").policy.name == "random-once"


# --- rounds that close early


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8, 0.05])
def test_a_round_closes_when_enough_devices_are_done_and_the_others_do_not_count(corners: Task, share: float) -> None:
    everyone = assemble(corners, make_method("fedavg"), Fleet(), Weather(), SETTINGS, Seeds())
    federation = replace(everyone, settings=replace(everyone.settings, wait_for=share))
    state, engine = first_state(federation), PlainEngine(corners, SETTINGS.training)
    waited = open_round(everyone, state)
    _, all_done = close_round(everyone, state, waited, *engine.train(state.weights, waited.orders))
    by_delay = sorted(all_done.devices, key=lambda report: report.true.total_s)[: ceil(20 * share)]
    opened = open_round(federation, state)
    sums, outcomes = engine.train(state.weights, opened.orders)
    after, record = close_round(federation, state, opened, sums, outcomes)
    done = {report.device for report in by_delay}
    assert {report.device for report in record.devices} == done == {order.device for order in opened.orders}
    assert len(sums.contributions) == ceil(20 * share)
    assert record.round_s == by_delay[-1].true.total_s <= all_done.round_s
    for device in range(20):  # whoever was too late has learnt nothing
        assert (after.devices[device] == state.devices[device]) == (device not in done)


def test_who_is_done_first_is_seen_with_the_overhead_of_every_round(corners: Task) -> None:
    groups = (DeviceGroup("JetsonNano", count=2, overhead_s=1000.0), DeviceGroup("RaspberryPi4", count=2))
    everyone = assemble(corners, make_method("fedavg"), Fleet(groups), Weather(), SETTINGS, Seeds())
    half = replace(everyone, settings=replace(everyone.settings, wait_for=0.5))
    opened = open_round(half, first_state(everyone))
    assert [order.device for order in opened.orders] == [2, 3]


def test_an_engine_made_before_examples_are_held_out_is_refused(corners: Task) -> None:
    settings = replace(SETTINGS, evaluation=EvaluationSettings(on="validation"))
    engine = PlainEngine(corners, settings.training)
    with pytest.raises(WhaleflError, match="evaluation.on is 'validation'"):
        simulate(corners, make_method("fedavg"), settings=settings, engine=engine)


def test_how_much_to_wait_for_is_checked() -> None:
    for share in (0.0, 1.1):
        with pytest.raises(WhaleflError, match="wait_for"):
            Settings(wait_for=share)


# --- the validation set


def test_a_tenth_of_every_class_is_held_out_and_not_trained_on() -> None:
    task = digits()
    labels = task.train.targets.numpy()
    held = held_out(labels)
    assert len(np.unique(held)) == len(held)
    for label, count in enumerate(np.bincount(labels)):
        assert (labels[held] == label).sum() == round(SHARE * count)
    split = with_validation(task)
    assert len(split.train) + len(split.test) == len(task.train)
    mask = np.zeros(len(labels), dtype=bool)
    mask[held] = True
    assert torch.equal(split.test.inputs, task.train.inputs[mask])
    assert torch.equal(split.train.inputs, task.train.inputs[~mask])


def test_texts_hold_out_every_tenth_sequence_with_words_hidden_as_in_testing() -> None:
    task = made_up("wikitext2")
    split = with_validation(task)
    assert held_out(task.train.targets.numpy()).tolist() == [9, 19]
    assert len(split.test) == 2 and len(split.train) == len(task.train) - 2
    assert split.groups is not None and len(split.groups) == len(split.train)
    assert task.masked is not None
    hidden = task.masked(split.test.inputs)
    assert 0 < hidden.float().mean() < 0.5
    assert torch.equal(split.test.inputs[~hidden], split.test.targets[~hidden].to(split.test.inputs.dtype))
    assert torch.equal(with_validation(task).test.inputs, split.test.inputs)


def test_evaluating_on_the_validation_set_leaves_the_test_set_alone(corners: Task) -> None:
    wrong = (corners.test.targets + 1) % corners.classes
    unread = replace(corners, test=replace(corners.test, targets=wrong))
    settings = replace(SETTINGS, evaluation=EvaluationSettings(on="validation"))
    scores = [
        list(simulate(task, make_method("fedavg"), settings=settings))[-1].record.accuracy for task in (corners, unread)
    ]
    assert scores[0] == scores[1] is not None and scores[0] > 0.2
    with pytest.raises(WhaleflError, match="on is 'train'"):
        EvaluationSettings(on="train")  # type: ignore[arg-type]
