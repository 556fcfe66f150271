"""Delays, energy, memory, and what a device knows of them: by hand for one device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest

from whalefl.errors import WhaleflError
from whalefl.federation.methods import make_method
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, simulate
from whalefl.federation.training import Training
from whalefl.fleet.devices import Device, DeviceGroup, Fleet
from whalefl.fleet.energy import energy_spent
from whalefl.fleet.knowledge import Knowledge, known_conditions, measure
from whalefl.fleet.latency import (
    LatencySettings,
    Workload,
    expected_delay,
    memory_level,
    true_delay,
)
from whalefl.fleet.weather import Sky, Weather
from whalefl.rng import Seeds
from whalefl.scheduling.fisher import FisherSettings
from whalefl.tasks.task import Task
from whalefl.values import Conditions, Delay

UPLOAD_ONLY = LatencySettings(download=False)
BOTH_WAYS = LatencySettings(download=True)

# CNN@MNIST at full width: 1,556,874 parameters of 32 bits; K = 10 mini-batches of 64.
FULL = Workload(
    level=1, samples=640, flops=238_946_304, upload_bits=49_819_968, download_bits=49_819_968, memory_mb=100.0
)

NANO_S = 31.2955616
"""640 samples at 0.048899315 s each: a Jetson Nano without load."""

LTE_S = 2.4909984
"""49.819968 Mbit at 20 Mbit/s."""


def only_device(group: DeviceGroup) -> Device:
    (device,) = Fleet((replace(group, count=1),)).devices
    return device


NANO = only_device(DeviceGroup("JetsonNano"))


def lte(gain: float = 1.0, load: float = 1.0) -> Conditions:
    return Conditions(link="lte", nominal_mbps=20.0, rate_mbps=20.0 * gain, slowdown=load, free_memory_mb=4096.0)


def clear_sky(*devices: Device) -> Sky:
    """A sky without load."""
    return Sky.over(Weather(load_factor=1.0), 0, devices)


def times(delay: Delay) -> tuple[float, float]:
    return delay.computing_s, delay.transmission_s


# --- delays by hand


@pytest.mark.parametrize(
    ("settings", "conditions", "computing_s", "transmission_s"),
    [
        (UPLOAD_ONLY, lte(), NANO_S, LTE_S),
        (BOTH_WAYS, lte(), NANO_S, 2 * LTE_S),
        (UPLOAD_ONLY, lte(gain=0.5), NANO_S, 2 * LTE_S),
        (UPLOAD_ONLY, lte(load=2.0), 2 * NANO_S, LTE_S),
        (BOTH_WAYS, lte(gain=0.1, load=4.0), 4 * NANO_S, 20 * LTE_S),
    ],
)
def test_expected_and_true_delay_by_hand_under_the_same_conditions(
    settings: LatencySettings, conditions: Conditions, computing_s: float, transmission_s: float
) -> None:
    expected = expected_delay(settings, NANO, FULL, conditions)
    met = true_delay(settings, clear_sky(NANO), NANO, FULL, conditions, start_s=1234.5)
    assert times(expected) == pytest.approx((computing_s, transmission_s), rel=1e-12)
    assert times(met) == pytest.approx((computing_s, transmission_s), rel=1e-12)
    assert met.total_s == pytest.approx(computing_s + transmission_s, rel=1e-12)


def test_download_and_upload_are_charged_by_their_own_sizes() -> None:
    lopsided = replace(FULL, upload_bits=20_000_000, download_bits=60_000_000)
    assert expected_delay(UPLOAD_ONLY, NANO, lopsided, lte()).transmission_s == pytest.approx(1.0)
    assert expected_delay(BOTH_WAYS, NANO, lopsided, lte()).transmission_s == pytest.approx(4.0)
    met = true_delay(BOTH_WAYS, clear_sky(NANO), NANO, lopsided, lte(), 0.0)
    assert met.transmission_s == pytest.approx(4.0)


def test_download_is_charged_unless_it_is_turned_off() -> None:
    assert LatencySettings().download


def test_a_slower_copy_of_a_kind_computes_longer_and_sends_as_fast() -> None:
    slow = only_device(DeviceGroup("JetsonNano", slowdown=3.0))
    assert times(expected_delay(UPLOAD_ONLY, slow, FULL, lte(load=2.0))) == pytest.approx((6 * NANO_S, LTE_S))


def test_a_narrower_level_is_charged_at_its_own_flops() -> None:
    # Width 1/16: 640 x 0.002509417 s = 1.60602688 s; 6,594 parameters are 0.211 Mbit, 21 ms on Bluetooth.
    unit = Workload(5, 640, 1_041_024, upload_bits=211_008, download_bits=211_008, memory_mb=1.0)
    bluetooth = Conditions("bluetooth", 10.0, 10.0, 1.0, 4096.0)
    assert times(expected_delay(UPLOAD_ONLY, NANO, unit, bluetooth)) == pytest.approx((1.60602688, 0.0211008))


# --- Fisher measurements


def charged_samples(task: Task, method: str, fisher: FisherSettings, iterations: int) -> set[float]:
    settings = Settings(training=Training(iterations=iterations, batch=16), fisher=fisher)
    federation = assemble(task, make_method(method), Fleet(), Weather(), settings, Seeds())
    return {work.samples for member in federation.members for work in member.works}


def test_methods_that_measure_fisher_are_charged_the_extra_passes(corners: Task) -> None:
    # 16 x (5 + 2 x 0.75) = 104 samples' worth of work.
    assert charged_samples(corners, "whale", FisherSettings(batches=2, cost=0.75), 5) == {104.0}


def test_no_more_mini_batches_are_charged_than_there_are(corners: Task) -> None:
    # Only one mini-batch to measure on: 16 x (1 + 1 x 0.5) = 24.
    assert charged_samples(corners, "whale", FisherSettings(batches=8, cost=0.5), 1) == {24.0}


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedrolex", "prefix+whale-se"])
def test_methods_that_do_not_measure_fisher_pay_nothing_for_it(corners: Task, method: str) -> None:
    assert charged_samples(corners, method, FisherSettings(batches=2, cost=0.75), 5) == {80.0}


def test_extra_samples_lengthen_computing_and_not_sending() -> None:
    measured = replace(FULL, samples=64 * (10 + 2 * 0.5))
    assert times(expected_delay(UPLOAD_ONLY, NANO, measured, lte())) == pytest.approx((1.1 * NANO_S, LTE_S))


# --- knowledge


def believed(settings: LatencySettings, met: Iterable[Conditions]) -> list[tuple[float, float]]:
    """(rate, slowdown) that a device believes in before each round, and after the last, still on LTE."""
    knowledge, beliefs = Knowledge(), []
    for true in met:
        known = known_conditions(settings, knowledge, true)
        beliefs.append((known.rate_mbps, known.slowdown))
        delay = true_delay(settings, clear_sky(NANO), NANO, FULL, true, 0.0)
        knowledge = measure(settings, knowledge, NANO, FULL, true, delay)
    known = known_conditions(settings, knowledge, lte(gain=0.77, load=1.23))
    return [*beliefs, (known.rate_mbps, known.slowdown)]


THREE_ROUNDS = (lte(gain=0.5, load=2.0), lte(gain=1.0, load=1.0), lte(gain=0.2, load=2.0))


def approximately(pairs: list[tuple[float, float]]) -> list[object]:
    return [pytest.approx(pair, rel=1e-12) for pair in pairs]


def test_an_oracle_believes_the_truth() -> None:
    settings = LatencySettings(knowledge="oracle")
    truth = [(10.0, 2.0), (20.0, 1.0), (4.0, 2.0), (15.4, 1.23)]
    assert believed(settings, THREE_ROUNDS) == approximately(truth)


def test_last_believes_in_the_measurement_of_the_round_before() -> None:
    settings = LatencySettings(knowledge="last")
    # Before anything was measured, the nominal rate and no load.
    assert believed(settings, THREE_ROUNDS) == approximately([(20.0, 1.0), (10.0, 2.0), (20.0, 1.0), (4.0, 2.0)])


def test_ewma_mixes_the_newest_measurement_in_with_its_weight() -> None:
    settings = LatencySettings(knowledge="ewma", ewma_weight=0.3)
    # quality: 0.5; 0.7 x 0.5 + 0.3 x 1 = 0.65; 0.7 x 0.65 + 0.3 x 0.2 = 0.515, each x 20 Mbit/s.
    # load: 2; 0.7 x 2 + 0.3 x 1 = 1.7; 0.7 x 1.7 + 0.3 x 2 = 1.79.
    assert believed(settings, THREE_ROUNDS) == approximately([(20.0, 1.0), (10.0, 2.0), (13.0, 1.7), (10.3, 1.79)])


def test_ewma_with_weight_one_is_last() -> None:
    newest = LatencySettings(knowledge="ewma", ewma_weight=1.0)
    assert believed(newest, THREE_ROUNDS) == believed(LatencySettings(knowledge="last"), THREE_ROUNDS)


@pytest.mark.parametrize("download", [True, False])
def test_what_is_learnt_does_not_depend_on_whether_downloads_are_charged(download: bool) -> None:
    settings = LatencySettings(knowledge="last", download=download)
    assert believed(settings, THREE_ROUNDS)[1] == pytest.approx((10.0, 2.0))


def test_the_quality_learnt_on_one_link_is_carried_to_the_next() -> None:
    wifi = Conditions("wifi5", 80.0, 24.0, 1.0, 4096.0)
    known = known_conditions(LatencySettings(knowledge="ewma"), Knowledge(0.5, 1.5, True), wifi)
    assert known == Conditions("wifi5", 80.0, 40.0, 1.5, 4096.0)


def test_the_slowdown_of_the_device_itself_is_not_mistaken_for_load() -> None:
    slow = only_device(DeviceGroup("JetsonNano", slowdown=3.0))
    settings = LatencySettings(knowledge="last")
    delay = true_delay(settings, clear_sky(slow), slow, FULL, lte(load=2.0), 0.0)
    assert measure(settings, Knowledge(), slow, FULL, lte(load=2.0), delay).slowdown == pytest.approx(2.0)


def test_a_belief_leaves_the_truth_untouched_and_is_overshot_when_that_is_worse() -> None:
    settings = LatencySettings(knowledge="ewma", download=False)
    true = lte(gain=0.25, load=2.0)
    known = known_conditions(settings, Knowledge(), true)
    expected = expected_delay(settings, NANO, FULL, known)
    met = true_delay(settings, clear_sky(NANO), NANO, FULL, true, 0.0)
    assert times(expected) == pytest.approx((NANO_S, LTE_S))
    assert times(met) == pytest.approx((2 * NANO_S, 4 * LTE_S))
    assert true == lte(gain=0.25, load=2.0)


def test_a_delay_may_be_overestimated_too() -> None:
    settings = LatencySettings(knowledge="last", download=False)
    pessimist = known_conditions(settings, Knowledge(0.1, 2.0, True), lte())
    assert times(expected_delay(settings, NANO, FULL, pessimist)) == pytest.approx((2 * NANO_S, 10 * LTE_S))


def test_what_was_known_and_what_was_true_stand_side_by_side_in_every_report(corners: Task) -> None:
    settings = Settings(rounds=2, training=Training(iterations=1, batch=4))
    reports = [r for done in simulate(corners, make_method("fedavg"), settings=settings) for r in done.record.devices]
    overshoots = sum(r.true.total_s > r.known.total_s for r in reports)
    assert 0 < overshoots < len(reports)
    for report in reports[:20]:  # in the first round nobody knows of any load
        assert report.true.computing_s == pytest.approx(report.slowdown * report.known.computing_s)


@pytest.mark.parametrize("rows", [None, "0,0.2\n1,0.01\n2,0.5\n3,0.05\n"], ids=["link", "trace"])
def test_an_oracle_expects_what_it_meets_on_a_link_and_on_a_trace(
    tmp_path: Path, corners: Task, rows: str | None
) -> None:
    settings = Settings(rounds=2, training=Training(iterations=1, batch=4), latency=LatencySettings(knowledge="oracle"))
    trace = None if rows is None else device_on(tmp_path, rows).trace
    fleet = Fleet((DeviceGroup("JetsonNano", count=4, trace=trace),))
    for done in simulate(corners, make_method("fedavg"), fleet, settings=settings):
        for report in done.record.devices:
            assert times(report.known) == pytest.approx(times(report.true), rel=1e-9)


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.01, float("nan")])
def test_an_ewma_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(WhaleflError, match="^ewma_weight is .*; it must be above 0 and at most 1$"):
        LatencySettings(ewma_weight=weight)


def test_an_unknown_kind_of_knowledge_is_refused() -> None:
    with pytest.raises(WhaleflError, match="^knowledge is 'orakle'; it must be .*oracle"):
        LatencySettings(knowledge="orakle")  # type: ignore[arg-type]


# --- traces


def device_on(folder: Path, rows: str) -> Device:
    path = folder / "link.csv"
    path.write_text(f"time_s,mbps\n{rows}")
    return only_device(DeviceGroup("JetsonNano", trace=str(path)))


def test_on_a_trace_the_upload_starts_when_computing_ends(tmp_path: Path) -> None:
    device = device_on(tmp_path, "0,10\n40,1\n80,10\n")  # slow from 40 to 80 s of each lap of 120 s
    sky = clear_sky(device)
    start_s = 120 + 20 - sky.offset_s(device)  # 20 s into the trace
    # Computing lasts 31.2955616 s, until 51.2955616 s: then 28.7044384 Mbit until 80 s, the rest at 10 Mbit/s.
    met = true_delay(UPLOAD_ONLY, sky, device, FULL, sky.conditions(device, 0.0), start_s)
    assert times(met) == pytest.approx((NANO_S, 28.7044384 + (49.819968 - 28.7044384) / 10))


def test_on_a_trace_the_download_comes_before_computing(tmp_path: Path) -> None:
    device = device_on(tmp_path, "0,10\n40,1\n80,10\n")
    sky = clear_sky(device)
    start_s = 120 - sky.offset_s(device)  # at the beginning of a lap
    # Down at 10 Mbit/s: 4.9819968 s. Computing until 36.2775584 s. Up: 37.224416 Mbit in the 3.7224416 s until 40 s,
    # and the other 12.595552 Mbit at 1 Mbit/s. Without the download the upload would have been done by then.
    met = true_delay(BOTH_WAYS, sky, device, FULL, sky.conditions(device, 0.0), start_s)
    assert times(met) == pytest.approx((NANO_S, 4.9819968 + 3.7224416 + 12.595552))


def test_on_a_trace_a_device_learns_the_rate_it_got_relative_to_the_mean(tmp_path: Path) -> None:
    device = device_on(tmp_path, "0,10\n40,0\n80,20\n")  # mean 10 Mbit/s
    settings = LatencySettings(knowledge="last", download=False)
    true = clear_sky(device).conditions(device, 0.0)
    delay = Delay(computing_s=1.5 * NANO_S, transmission_s=49.819968 / 4)  # 4 Mbit/s
    learnt = measure(settings, Knowledge(), device, FULL, true, delay)
    assert (learnt.quality, learnt.slowdown) == pytest.approx((0.4, 1.5))
    known = known_conditions(settings, learnt, true)
    assert (known.rate_mbps, known.slowdown) == pytest.approx((4.0, 1.5))


@pytest.mark.parametrize("knowledge", ["oracle", "last", "ewma"])
def test_an_outage_at_the_start_of_a_round_is_waited_for(tmp_path: Path, corners: Task, knowledge: str) -> None:
    path = tmp_path / "tunnel.csv"
    path.write_text("time_s,mbps\n0,0\n10000,0\n19990,50\n20000,50\n")
    settings = Settings(
        rounds=2,
        training=Training(iterations=1, batch=4),
        latency=LatencySettings(knowledge=knowledge),  # type: ignore[arg-type]
    )
    fleet = Fleet((DeviceGroup("JetsonNano", count=4, trace=str(path)),))
    for done in simulate(corners, make_method("whale"), fleet, settings=settings):
        for report in done.record.devices:
            assert report.true.total_s > 0 and isfinite(report.true.total_s)
            assert report.known.total_s > 0 and isfinite(report.known.total_s)


# --- energy


def test_energy_is_power_times_time_for_processor_and_radio() -> None:
    device = only_device(DeviceGroup("JetsonNano", power_w=8.0))
    spent = energy_spent(device, Delay(computing_s=30.0, transmission_s=4.0), radio_power_w=2.5)
    assert (spent.computing_j, spent.radio_j) == (240.0, 10.0)


def test_each_link_has_its_radio_and_a_trace_its_own(tmp_path: Path) -> None:
    sky = Sky.over(Weather(trace_power_w=7.0), 0, ())
    assert [sky.radio_power_w(link) for link in ("wifi5", "lte", "bluetooth")] == [1.3, 2.5, 0.3]
    assert sky.radio_power_w("trace:tram") == 7.0


def test_reported_energy_follows_from_the_true_delay(corners: Task) -> None:
    settings = Settings(rounds=1, training=Training(iterations=1, batch=4))
    fleet = Fleet((DeviceGroup("RaspberryPi4", count=4, power_w=6.0),))
    radio = {"wifi5": 1.3, "lte": 2.5, "bluetooth": 0.3}
    for done in simulate(corners, make_method("fedavg"), fleet, settings=settings):
        for report in done.record.devices:
            assert report.energy.computing_j == pytest.approx(6.0 * report.true.computing_s)
            assert report.energy.radio_j == pytest.approx(radio[report.link] * report.true.transmission_s)


# --- memory


@pytest.mark.parametrize(
    ("free_mb", "level"), [(1000.0, 1), (100.0, 1), (99.9, 2), (30.0, 2), (29.9, 3), (8.0, 3), (7.9, 3), (0.0, 3)]
)
def test_the_memory_level_is_the_widest_that_fits_and_the_smallest_always_does(free_mb: float, level: int) -> None:
    works = [replace(FULL, level=p, memory_mb=mb) for p, mb in ((1, 100.0), (2, 30.0), (3, 8.0))]
    assert memory_level(works, free_mb) == level


def test_no_device_trains_a_slice_that_does_not_fit(corners: Task) -> None:
    settings = Settings(rounds=1, training=Training(iterations=1, batch=4))
    federation = assemble(corners, make_method("fedavg"), Fleet(), Weather(), settings, Seeds())
    needed = [work.memory_mb for work in federation.members[0].works]
    room = (needed[2] + needed[1]) / 2  # level 3 fits, level 2 does not
    fleet = Fleet((DeviceGroup("MacBookPro2018", count=4, memory_mb=room),))
    steady = Weather(least_free_memory=1.0)
    for done in simulate(corners, make_method("fedavg"), fleet, steady, settings):
        assert [report.level for report in done.record.devices] == [3] * 4
