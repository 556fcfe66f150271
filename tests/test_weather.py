"""The weather: a function of seed, device and virtual time alone, with the statistics it was decided to have."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import exp, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whalefl.errors import WhaleflError
from whalefl.federation.methods import make_method
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import simulate
from whalefl.federation.training import Training
from whalefl.fleet.devices import Device, DeviceGroup, Fleet
from whalefl.fleet.links import TESTBED_LINKS, Link
from whalefl.fleet.weather import WEATHERS, Sky, Weather, fading_gain
from whalefl.rng import Seeds
from whalefl.tasks.task import Task
from whalefl.values import Conditions

DEVICES = Fleet().devices
STEP_S, STEPS, OBSERVED = 6.0, 4000, 10  # ten devices, each watched for 24,000 s
NO_FADING = Weather(fading=False)


def sky(weather: Weather | None = None, seed: int = 0) -> Sky:
    return Sky.over(weather or Weather(), seed, DEVICES)


@pytest.fixture(scope="module")
def watched() -> list[list[Conditions]]:
    """What each of a few devices sees when it looks every STEP_S seconds."""
    above = sky(NO_FADING, seed=5)
    return [[above.conditions(device, step * STEP_S) for step in range(STEPS)] for device in DEVICES[:OBSERVED]]


def sojourns(states: Sequence[object]) -> list[float]:
    """The seconds spent in each stretch of equal states; the first and the last are cut off and left out."""
    return [STEP_S * len(list(stretch)) for _, stretch in groupby(states)][1:-1]


def all_sojourns(watched: list[list[Conditions]], key: str) -> list[float]:
    return [length for seen in watched for length in sojourns([getattr(c, key) for c in seen])]


# --- a function of (seed, device, time)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    device=st.sampled_from(DEVICES),
    at_s=st.floats(0, 1e5),
    before=st.lists(st.tuples(st.sampled_from(DEVICES), st.floats(0, 1e5)), max_size=5),
)
def test_conditions_do_not_depend_on_what_was_asked_before(
    seed: int, device: Device, at_s: float, before: list[tuple[Device, float]]
) -> None:
    used = sky(seed=seed)
    for other, moment in before:
        used.conditions(other, moment)
    assert used.conditions(device, at_s) == sky(seed=seed).conditions(device, at_s)


def test_asking_in_any_order_gives_the_same_history() -> None:
    questions = [(device, at_s) for device in DEVICES[:4] for at_s in np.linspace(0, 3000, 40)]
    forward = {(d.index, t): sky().conditions(d, t) for d, t in questions}
    shuffled = random.Random(1).sample(questions, len(questions))
    above = sky()
    assert {(d.index, t): above.conditions(d, t) for d, t in shuffled} == forward


def test_a_device_has_the_same_weather_in_any_fleet_and_of_any_kind() -> None:
    alone = Fleet((DeviceGroup("RaspberryPi4", count=1, memory_mb=DEVICES[0].memory_mb),)).devices
    for at_s in (0.0, 500.0, 7777.7):
        assert Sky.over(Weather(), 3, alone).conditions(alone[0], at_s) == sky(seed=3).conditions(DEVICES[0], at_s)


def test_seeds_and_devices_have_different_weather() -> None:
    def history(seed: int, device: Device) -> tuple[Conditions, ...]:
        return tuple(sky(seed=seed).conditions(replace(device, memory_mb=1000.0), t) for t in range(0, 2000, 100))

    assert len({history(seed, device) for seed in range(4) for device in DEVICES[:4]}) == 16


def test_different_devices_and_different_processes_are_uncorrelated(watched: list[list[Conditions]]) -> None:
    # 10 x 134 samples 180 s apart, which are nearly independent: a correlation of 0.12 would be over 4 sigma.
    apart = [seen[::30] for seen in watched]
    link = np.array([[c.nominal_mbps == 80 for c in seen] for seen in apart], dtype=float)
    load = np.array([[c.slowdown == 2 for c in seen] for seen in apart], dtype=float)
    free = np.array([[c.free_memory_mb / d.memory_mb for c in s] for s, d in zip(apart, DEVICES, strict=False)])
    for one, other in [(link, load), (link, free), (load, free)]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.12
    for process in (link, load, free):
        assert abs(np.corrcoef(process[:-1].ravel(), process[1:].ravel())[0, 1]) < 0.12


# --- long-run statistics


def test_the_three_links_are_equally_frequent_and_have_the_testbed_rates() -> None:
    skies = [sky(NO_FADING, seed=seed) for seed in range(20)]
    moments = [(above, device, 1800.0 * k) for above in skies for device in DEVICES[:10] for k in range(20)]
    seen = Counter((c.link, c.nominal_mbps) for c in (above.conditions(d, at_s) for above, d, at_s in moments))
    assert set(seen) == {("wifi5", 80.0), ("lte", 20.0), ("bluetooth", 10.0)}
    for count in seen.values():  # 4,000 independent moments: sigma 0.75 %
        assert count / len(moments) == pytest.approx(1 / 3, abs=0.03)


def test_links_are_redrawn_after_180_s_on_average_and_two_redraws_in_three_show(
    watched: list[list[Conditions]],
) -> None:
    pairs = [(a.link, b.link) for seen in watched for a, b in zip(seen[:-1], seen[1:], strict=True)]
    changes = sum(a != b for a, b in pairs)
    # Within 6 s at least one redraw has happened with 1 - exp(-6/180), and the last of them shows with 2/3.
    assert changes == pytest.approx(len(pairs) * (1 - exp(-STEP_S / 180)) * 2 / 3, rel=0.12)
    # So a link is kept for 180 s / (2/3) = 270 s.
    assert np.mean(all_sojourns(watched, "link")) == pytest.approx(270, rel=0.12)


def test_the_time_on_a_link_is_exponential(watched: list[list[Conditions]]) -> None:
    kept = np.array(all_sojourns(watched, "link"))
    for share in (0.5, 1.0, 2.0):  # about 850 stretches: sigma below 1.8 %
        assert np.mean(kept > share * 270) == pytest.approx(exp(-share), abs=0.06)


@pytest.mark.parametrize("lag_s", [60, 180, 480])
def test_a_link_is_forgotten_exponentially(watched: list[list[Conditions]], lag_s: int) -> None:
    shift = int(lag_s / STEP_S)
    same = [a.link == b.link for seen in watched for a, b in zip(seen[:-shift], seen[shift:], strict=True)]
    assert np.mean(same) == pytest.approx(1 / 3 + 2 / 3 * exp(-lag_s / 180), abs=0.06)


def test_the_load_is_on_half_of_the_time(watched: list[list[Conditions]]) -> None:
    levels = Counter(c.slowdown for seen in watched for c in seen)
    assert set(levels) == {1.0, 2.0}
    assert levels[2.0] / (OBSERVED * STEPS) == pytest.approx(
        0.5, abs=0.07
    )  # sigma sqrt(1/4 x 180 s / 240,000 s) = 1.4 %


def test_the_load_stays_on_or_off_for_180_s_on_average(watched: list[list[Conditions]]) -> None:
    assert np.mean(all_sojourns(watched, "slowdown")) == pytest.approx(180, rel=0.12)
    for state in (1.0, 2.0):
        lengths = [
            STEP_S * len(list(stretch))
            for seen in watched
            for slowdown, stretch in groupby(c.slowdown for c in seen)
            if slowdown == state
        ]
        assert np.mean(lengths) == pytest.approx(180, rel=0.15)


def test_the_time_under_load_is_exponential(watched: list[list[Conditions]]) -> None:
    kept = np.array(all_sojourns(watched, "slowdown"))
    for share in (0.5, 1.0, 2.0):
        assert np.mean(kept > share * 180) == pytest.approx(exp(-share), abs=0.06)


def test_free_memory_is_uniform_between_the_least_share_and_all(watched: list[list[Conditions]]) -> None:
    shares = np.array([[c.free_memory_mb for c in seen] for seen in watched])
    shares /= np.array([[device.memory_mb] for device in DEVICES[:OBSERVED]])
    assert shares.min() >= 0.25 and shares.max() <= 1.0
    # A uniform share on [1/4, 1]: mean 5/8, and a third of the time in each third of the range.
    assert shares.mean() == pytest.approx(0.625, abs=0.03)
    for third in range(3):
        inside = (shares >= 0.25 + third / 4) & (shares < 0.25 + (third + 1) / 4)
        assert inside.mean() == pytest.approx(1 / 3, abs=0.05)


def test_free_memory_is_redrawn_after_180_s_on_average(watched: list[list[Conditions]]) -> None:
    assert np.mean(all_sojourns(watched, "free_memory_mb")) == pytest.approx(180, rel=0.12)


@pytest.mark.parametrize("least", [0.1, 0.9, 1.0])
def test_the_least_free_memory_bounds_the_share(least: float) -> None:
    above = sky(Weather(least_free_memory=least))
    shares = [above.conditions(DEVICES[0], t).free_memory_mb / DEVICES[0].memory_mb for t in range(0, 60_000, 600)]
    assert min(shares) >= least - 1e-12 and max(shares) <= 1.0
    assert min(shares) == pytest.approx(least, abs=0.15)
    assert max(shares) == pytest.approx(1.0, abs=0.15)


# --- fading


@pytest.mark.parametrize(
    ("h", "gain"),
    [
        (0.0, 0.1),  # log2 1 = 0, clipped
        (0.01, 0.1),  # log 1.1 / log 11 = 0.0397, clipped
        (0.1, 0.289065),  # ln 2 / ln 11 = 0.693147 / 2.397895
        (1.0, 1.0),
        (1.5, 1.156257),  # ln 16 / ln 11 = 2.772589 / 2.397895
        (2.0, 1.2),  # ln 21 / ln 11 = 1.2697, clipped
        (50.0, 1.2),
    ],
)
def test_the_fading_gain_by_hand(h: float, gain: float) -> None:
    assert fading_gain(h) == pytest.approx(gain, abs=1e-5)


def gains(slots: int, seed: int = 0, device: Device = DEVICES[0]) -> list[float]:
    above = sky(seed=seed)
    seen = [above.conditions(device, 10.0 * slot + 5) for slot in range(slots)]
    return [c.rate_mbps / c.nominal_mbps for c in seen]


def test_fading_gains_stay_within_their_clips_and_follow_an_exponential() -> None:
    drawn = np.array(gains(3000))
    assert drawn.min() >= 0.1 - 1e-12 and drawn.max() <= 1.2 + 1e-12
    # Clipped below where h < (11^0.1 - 1)/10 = 0.02710, above where h > (11^1.2 - 1)/10 = 1.6769.
    assert np.mean(drawn < 0.1 + 1e-9) == pytest.approx(1 - exp(-0.02710), abs=0.012)
    assert np.mean(drawn > 1.2 - 1e-9) == pytest.approx(exp(-1.6769), abs=0.03)
    # h < ln 2 half of the time: the median gain is log2(1 + 10 ln 2) / log2 11 = 0.8637.
    assert np.median(drawn) == pytest.approx(log2(1 + 6.931472) / log2(11), abs=0.03)


def test_fading_is_drawn_anew_in_every_slot_without_memory() -> None:
    drawn = np.array(gains(3000, seed=2))
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.08
    assert len(set(np.round(drawn[(drawn > 0.11) & (drawn < 1.19)], 9))) > 2000


@pytest.mark.parametrize("slot", [0, 1, 17, 4321])
def test_the_gain_is_constant_inside_a_ten_second_slot_and_changes_at_its_end(slot: int) -> None:
    above, weather = sky(seed=1), sky(NO_FADING, seed=1)

    def gain(at_s: float) -> float:
        return above.conditions(DEVICES[2], at_s).rate_mbps / weather.conditions(DEVICES[2], at_s).rate_mbps

    inside = [gain(10 * slot + offset) for offset in (0.0, 0.001, 3.3, 5.0, 9.999)]
    assert inside == pytest.approx([inside[0]] * 5, rel=1e-12)
    assert gain(10 * slot + 10) != pytest.approx(inside[0], rel=1e-6)


def test_without_fading_the_rate_is_the_nominal_one(watched: list[list[Conditions]]) -> None:
    assert all(c.rate_mbps == c.nominal_mbps for seen in watched for c in seen)


# --- presets


def test_calm_has_no_load_and_rough_four_times_where_the_default_has_two() -> None:
    for at_s in np.linspace(0, 5000, 60):
        default, calm, rough = (sky(WEATHERS[n]).conditions(DEVICES[1], at_s) for n in ("default", "calm", "rough"))
        assert calm.slowdown == 1.0
        assert (default.slowdown, rough.slowdown) in {(1.0, 1.0), (2.0, 4.0)}
        assert replace(calm, slowdown=default.slowdown) == default == replace(rough, slowdown=default.slowdown)
    assert {sky(WEATHERS["rough"]).conditions(DEVICES[1], t).slowdown for t in range(0, 5000, 90)} == {1.0, 4.0}


def test_a_single_link_is_always_up() -> None:
    only = Weather(links=(Link("cable", 5.0, 1.0),), fading=False)
    assert {sky(only).conditions(DEVICES[0], t).link for t in range(0, 5000, 100)} == {"cable"}


def test_means_scale_the_processes() -> None:
    slow, fast = (sky(replace(NO_FADING, link_mean_s=mean)) for mean in (20_000.0, 20.0))
    links = [[above.conditions(DEVICES[0], t).link for t in range(0, 6000, 20)] for above in (slow, fast)]
    changes = [sum(a != b for a, b in zip(seen[:-1], seen[1:], strict=True)) for seen in links]
    assert changes[0] <= 3
    # 299 steps of one mean each: 2/3 (1 - 1/e) of them change, 126 with sigma 8.5.
    assert changes[1] == pytest.approx(126, abs=35)


def test_the_testbed_links_are_those_of_the_paper() -> None:
    assert {link.name: link.mbps for link in TESTBED_LINKS} == {"wifi5": 80.0, "lte": 20.0, "bluetooth": 10.0}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"links": ()}, "links is empty; the weather must have at least one link"),
        ({"load_factor": 0.5}, "load_factor is 0.5; it must be a finite number of at least 1"),
        ({"link_mean_s": 0.0}, "link_mean_s is 0.0; it must be a finite number above 0"),
        ({"load_mean_s": -180.0}, "load_mean_s is -180.0; it must be a finite number above 0"),
        ({"fading_slot_s": float("nan")}, "fading_slot_s is nan; it must be a finite number above 0"),
        ({"memory_mean_s": float("inf")}, "memory_mean_s is inf; it must be a finite number above 0"),
        ({"least_free_memory": 0.0}, "least_free_memory is 0.0; it must be above 0 and at most 1"),
        ({"least_free_memory": 1.5}, "least_free_memory is 1.5; it must be above 0 and at most 1"),
    ],
)
def test_impossible_weather_is_refused_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WhaleflError, match=f"^{re.escape(sentence)}$"):
        Weather(**given)


@pytest.mark.parametrize(("mbps", "power_w"), [(0.0, 1.0), (-5.0, 1.0), (5.0, -1.0), (float("nan"), 1.0)])
def test_impossible_links_are_refused(mbps: float, power_w: float) -> None:
    with pytest.raises(WhaleflError, match="^(mbps|power_w) is .*; it must be a finite number"):
        Link("odd", mbps, power_w)


# --- the same for every method


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "whale"])
def test_every_method_meets_the_weather_of_its_seed_at_the_start_of_each_round(corners: Task, method: str) -> None:
    small = Settings(rounds=4, training=Training(iterations=1, batch=4))
    start_s, above = 0.0, sky(seed=9)
    for finished in simulate(corners, make_method(method), settings=small, seeds=Seeds(training=4, weather=9)):
        for report in finished.record.devices:
            true = above.conditions(DEVICES[report.device], start_s)
            met = Conditions(report.link, true.nominal_mbps, report.rate_mbps, report.slowdown, report.free_memory_mb)
            assert met == true
        start_s = finished.record.time_s
    assert start_s > 0
