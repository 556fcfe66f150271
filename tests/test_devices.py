"""Devices: the measured table, the curve through it, and what a group may say about its devices."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whalefl.errors import WhaleflError
from whalefl.fleet.devices import KINDS, REFERENCE_FLOPS, DeviceGroup, Fleet, measured_times, seconds_per_sample

WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)

MEASURED = {
    "MacBookPro2018": (0.0083647, 0.0038257, 0.0021069, 0.0014589, 0.0009867),
    "JetsonXavier": (0.04070369, 0.0127832, 0.0057802, 0.003491786, 0.002557199),
    "JetsonTX2": (0.046046102, 0.014587217, 0.006172761, 0.003529953, 0.002453266),
    "JetsonNano": (0.048899315, 0.015707265, 0.006548797, 0.003732, 0.002509417),
    "RaspberryPi4": (0.051820623, 0.016849187, 0.006933952, 0.003939243, 0.002569063),
}
"""The testbed's table: seconds per sample at the five widths, widest first."""


def training_flops(width: float) -> int:
    """FLOPs per sample of a training step of CNN@MNIST, by hand.

    3x3 convolutions 1-64-128-256-512 on 28, 14, 7 and 3 pixels a side (2 x 2 pools between), then 512-10. Two FLOPs
    a multiplication; forward, gradient of the weights, and gradient of the inputs (not of the images).
    """
    channels = [1, *(int(c * width) for c in (64, 128, 256, 512))]
    sides = (28, 14, 7, 3)
    layers = [9 * side**2 * channels[i] * channels[i + 1] for i, side in enumerate(sides)]
    layers.append(channels[-1] * 10)
    return 2 * (3 * sum(layers) - layers[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_reference_flops_are_those_of_the_measured_cnn(width: float) -> None:
    assert REFERENCE_FLOPS[width] == training_flops(width)


@pytest.mark.parametrize("kind", MEASURED)
def test_the_measured_table_is_reproduced_exactly_at_the_reference_flops(kind: str) -> None:
    assert tuple(seconds_per_sample(kind, training_flops(width)) for width in WIDTHS) == MEASURED[kind]


def test_the_table_has_exactly_the_five_kinds_and_five_widths() -> None:
    assert {kind: tuple(by_width[w] for w in WIDTHS) for kind, by_width in measured_times().items()} == MEASURED
    assert all(len(by_width) == 5 for by_width in measured_times().values())


@given(
    kind=st.sampled_from(sorted(MEASURED)),
    segment=st.integers(0, 3),
    share=st.floats(0, 1),
)
def test_between_two_measured_widths_the_curve_is_a_straight_line(kind: str, segment: int, share: float) -> None:
    wide, narrow = training_flops(WIDTHS[segment]), training_flops(WIDTHS[segment + 1])
    slow, fast = MEASURED[kind][segment], MEASURED[kind][segment + 1]
    expected = fast + share * (slow - fast)
    assert seconds_per_sample(kind, narrow + share * (wide - narrow)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", MEASURED)
@pytest.mark.parametrize("factor", [1.0001, 2.0, 14.5, 1000.0])
def test_beyond_the_widest_time_is_proportional_to_flops(kind: str, factor: float) -> None:
    assert seconds_per_sample(kind, factor * 238_946_304) == pytest.approx(factor * MEASURED[kind][0], rel=1e-12)


@pytest.mark.parametrize("kind", MEASURED)
@pytest.mark.parametrize("flops", [0.0, 1.0, 500_000.0, 1_041_023.0])
def test_below_the_narrowest_time_is_flat(kind: str, flops: float) -> None:
    assert seconds_per_sample(kind, flops) == MEASURED[kind][-1]


@given(
    kind=st.sampled_from(sorted(MEASURED)), flops=st.lists(st.floats(0, 1e12, allow_nan=False), min_size=2, max_size=2)
)
def test_more_flops_never_take_less_time(kind: str, flops: list[float]) -> None:
    less, more = sorted(flops)
    assert seconds_per_sample(kind, less) <= seconds_per_sample(kind, more)


def test_the_default_fleet_is_the_testbed_four_of_each_kind_in_order_of_speed() -> None:
    fleet = Fleet()
    assert len(fleet) == 20
    assert [device.index for device in fleet.devices] == list(range(20))
    assert [device.kind for device in fleet.devices] == [kind for kind in MEASURED for _ in range(4)]
    assert tuple(MEASURED) == KINDS


def test_fixed_levels_go_from_1_on_the_macbook_to_5_on_the_pi() -> None:
    levels = {device.kind: device.fixed_level for device in Fleet().devices}
    assert levels == {
        "MacBookPro2018": 1,
        "JetsonXavier": 2,
        "JetsonTX2": 3,
        "JetsonNano": 4,
        "RaspberryPi4": 5,
    }


def test_by_default_no_device_is_capped_or_slowed_or_on_a_trace() -> None:
    assert {(d.widest_level, d.slowdown, d.trace) for d in Fleet().devices} == {(1, 1.0, None)}


def test_a_group_overrides_everything_but_its_kind_and_only_for_itself() -> None:
    own = DeviceGroup(
        "JetsonNano",
        count=2,
        slowdown=3.0,
        widest_level=2,
        fixed_level=1,
        power_w=11.0,
        memory_mb=512.0,
        trace="link.csv",
    )
    first, second, other = Fleet((own, DeviceGroup("JetsonNano", count=1))).devices
    for device in (first, second):
        assert (device.slowdown, device.widest_level, device.fixed_level) == (3.0, 2, 1)
        assert (device.power_w, device.memory_mb, device.trace) == (11.0, 512.0, "link.csv")
    assert (other.index, other.slowdown, other.widest_level, other.fixed_level) == (2, 1.0, 1, 4)
    assert (other.power_w, other.memory_mb) != (11.0, 512.0)
    assert other.trace is None


def test_a_power_of_zero_is_an_override_and_not_a_missing_value() -> None:
    (device,) = Fleet((DeviceGroup("JetsonNano", count=1, power_w=0),)).devices
    assert device.power_w == 0


def test_computing_time_is_samples_times_seconds_times_slowdown() -> None:
    (device,) = Fleet((DeviceGroup("RaspberryPi4", count=1, slowdown=2.5),)).devices
    # 64 x 10 samples at half width: 640 x 0.016849187 s = 10.78347968 s, and 2.5 times that.
    assert device.computing_s(training_flops(0.5), 640) == pytest.approx(26.9586992, rel=1e-12)


def test_a_fleet_without_groups_is_refused() -> None:
    with pytest.raises(WhaleflError, match="^groups is empty; a fleet must have at least one device$"):
        Fleet(())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"count": -2}, "count is -2; it must be at least 1"),
        ({"slowdown": 0.0}, "slowdown is 0.0; it must be a finite number above 0"),
        ({"slowdown": -1.0}, "slowdown is -1.0; it must be a finite number above 0"),
        ({"slowdown": float("nan")}, "slowdown is nan; it must be a finite number above 0"),
        ({"slowdown": float("inf")}, "slowdown is inf; it must be a finite number above 0"),
        ({"widest_level": 0}, "widest_level is 0; it must be at least 1"),
        ({"fixed_level": 0}, "fixed_level is 0; it must be at least 1"),
        ({"fixed_level": -3}, "fixed_level is -3; it must be at least 1"),
        ({"power_w": -0.5}, "power_w is -0.5; it must be a finite number of at least 0"),
        ({"memory_mb": 0.0}, "memory_mb is 0.0; it must be a finite number above 0"),
        ({"memory_mb": -1.0}, "memory_mb is -1.0; it must be a finite number above 0"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_would_be_right(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WhaleflError, match=f"^{re.escape(sentence)}$"):
        DeviceGroup("JetsonNano", **given)


def test_an_unknown_kind_is_answered_with_all_kinds_and_the_nearest() -> None:
    with pytest.raises(WhaleflError) as caught:
        DeviceGroup("JetsonNanno")
    sentence = str(caught.value)
    assert sentence.startswith("kind is 'JetsonNanno'; it must be one of ")
    assert all(kind in sentence for kind in MEASURED)
    assert sentence.endswith("(did you mean 'JetsonNano'?)")
