"""Replayed bandwidth: the time to send is the integral of the rate, through outages and around the end."""

from __future__ import annotations

import csv
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whalefl.errors import WhaleflError
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.traces import Trace
from whalefl.fleet.weather import Sky, Weather

MBIT = 1_000_000


def trace(*samples: tuple[float, float]) -> Trace:
    time_s, mbps = zip(*samples, strict=True)
    return Trace("test", np.array(time_s, dtype=float), np.array(mbps, dtype=float))


def write(folder: Path, text: str, name: str = "link.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    """What Trace.read says about a bad file: it must be one line."""
    with pytest.raises(WhaleflError) as caught:
        Trace.read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- by hand

STAIRS = trace((0, 2), (1, 0), (3, 4), (4, 1))
"""2 Mbit/s for 1 s, an outage of 2 s, 4 Mbit/s for 1 s, 1 Mbit/s for 1 s (the median step): 7 Mbit in 5 s."""


def test_a_lap_by_hand() -> None:
    assert STAIRS.duration_s == 5
    assert STAIRS.mean_mbps == pytest.approx(7 / 5)


@pytest.mark.parametrize(
    ("at_s", "mbps"),
    [(0, 2), (0.999, 2), (1, 0), (2.5, 0), (3, 4), (4, 1), (4.999, 1), (5, 2), (6, 0), (8.5, 4), (5003.5, 4)],
)
def test_the_rate_holds_from_its_sample_to_the_next_and_wraps(at_s: float, mbps: float) -> None:
    assert STAIRS.rate(at_s) == mbps


@pytest.mark.parametrize(
    ("mbit", "start_s", "seconds"),
    [
        (1, 0, 0.5),
        (2, 0, 1.0),  # done with the last bit before the outage, not after it
        (3, 0, 3.25),  # the outage is waited for
        (1, 1, 2.25),
        (1, 2.5, 0.75),  # from inside the outage
        (6, 0, 4.0),
        (7, 0, 5.0),  # exactly a lap
        (8, 0, 5.5),
        (14, 0, 10.0),  # exactly two laps
        (7, 0.5, 5.0),
        (7, 2, 4.0),  # 1 s of outage, 4 + 1 Mbit in 2 s, then 2 Mbit in the next lap's first second
        (5, 2, 3.0),  # ends with the trace
        (0.5, 4.75, 0.375),  # 0.25 Mbit until the end, then 0.25 at 2 Mbit/s
        (7000 + 1, 0, 5000.5),
        (1, 5000, 0.5),
    ],
)
def test_transmission_times_by_hand(mbit: float, start_s: float, seconds: float) -> None:
    assert STAIRS.transmission_seconds(mbit * MBIT, start_s) == pytest.approx(seconds, abs=1e-9)


def test_nothing_to_send_takes_no_time_even_in_an_outage() -> None:
    assert STAIRS.transmission_seconds(0, 1.5) == 0.0


def test_one_sample_is_a_constant_link() -> None:
    constant = trace((0, 8))
    assert constant.transmission_seconds(20 * MBIT, 123.4) == pytest.approx(2.5)
    assert constant.rate(77.7) == 8


def test_a_trace_that_begins_with_an_outage_waits_in_every_lap() -> None:
    late = trace((0, 0), (1, 2))  # 2 Mbit in each lap of 2 s
    assert late.transmission_seconds(2 * MBIT, 0) == pytest.approx(2.0)
    assert late.transmission_seconds(3 * MBIT, 0) == pytest.approx(3.5)
    assert late.transmission_seconds(1 * MBIT, 1.75) == pytest.approx(1.5)


def test_only_differences_of_time_matter() -> None:
    later = Trace("later", STAIRS.time_s + 100, STAIRS.mbps)
    assert later.duration_s == STAIRS.duration_s
    for start_s in (0.0, 1.5, 4.5):
        assert later.rate(start_s) == STAIRS.rate(start_s)
        assert later.transmission_seconds(3 * MBIT, start_s) == STAIRS.transmission_seconds(3 * MBIT, start_s)


# --- against brute force


def walk(steps: list[tuple[Fraction, Fraction]], mbit: Fraction, start_s: Fraction) -> Fraction:
    """The time to send, walking from sample to sample in exact arithmetic; `steps` are (seconds, Mbit/s)."""
    lap = sum(seconds for seconds, _ in steps)
    place, at, passed = start_s % lap, 0, Fraction(0)
    while place >= steps[at][0]:
        place -= steps[at][0]
        at += 1
    left = steps[at][0] - place
    while mbit > left * steps[at][1]:
        mbit -= left * steps[at][1]
        passed += left
        at = (at + 1) % len(steps)
        left = steps[at][0]
    return passed + (mbit / steps[at][1] if mbit else 0)


def exact_steps(time_s: list[Fraction], mbps: list[Fraction]) -> list[tuple[Fraction, Fraction]]:
    gaps = [b - a for a, b in zip(time_s[:-1], time_s[1:], strict=True)]
    ordered = sorted(gaps)
    middle = len(gaps) // 2
    median = ordered[middle] if len(gaps) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return list(zip([*gaps, median], mbps, strict=True))


def eighths(least: int, most: int) -> st.SearchStrategy[Fraction]:
    """Numbers that floats hold exactly, so that the edges of outages can be asked for exactly."""
    return st.integers(least, most).map(lambda n: Fraction(n, 8))


@st.composite
def lapped_traces(draw: st.DrawFn) -> tuple[list[Fraction], list[Fraction]]:
    gaps = draw(st.lists(eighths(1, 40), min_size=1, max_size=8))
    time_s = [sum(gaps[:i], Fraction(0)) for i in range(len(gaps) + 1)]
    rate = st.one_of(st.just(Fraction(0)), eighths(1, 400))
    mbps = draw(st.lists(rate, min_size=len(time_s), max_size=len(time_s)).filter(any))
    return time_s, mbps


@settings(max_examples=400, deadline=None)
@given(samples=lapped_traces(), mbit=eighths(0, 8000), start_s=eighths(0, 4000))
def test_transmission_equals_a_walk_over_the_samples(
    samples: tuple[list[Fraction], list[Fraction]], mbit: Fraction, start_s: Fraction
) -> None:
    time_s, mbps = samples
    replayed = Trace("drawn", np.array(time_s, dtype=float), np.array(mbps, dtype=float))
    expected = walk(exact_steps(time_s, mbps), mbit, start_s)
    seconds = replayed.transmission_seconds(float(mbit * MBIT), float(start_s))
    assert seconds == pytest.approx(float(expected), rel=1e-12, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    gaps=st.lists(st.floats(0.01, 20), min_size=1, max_size=10),
    data=st.data(),
    mbit=st.floats(1e-3, 500),
    start_s=st.floats(0, 1e5),
)
def test_the_integral_of_the_rate_up_to_the_end_is_what_was_to_be_sent(
    gaps: list[float], data: st.DataObject, mbit: float, start_s: float
) -> None:
    rate = st.one_of(st.just(0.0), st.floats(0.01, 300))
    mbps = data.draw(st.lists(rate, min_size=len(gaps) + 1, max_size=len(gaps) + 1).filter(any))
    time_s = np.concatenate([[0.0], np.cumsum(gaps)])
    replayed = Trace("drawn", time_s, np.array(mbps))
    edges = np.append(time_s, time_s[-1] + np.median(np.diff(time_s)))

    def sent(until_s: float) -> float:
        """Mbit from time 0 on: the overlap of every sample with the span, lap by lap."""
        laps, rest = divmod(until_s, edges[-1])
        lap = float(np.sum(np.diff(edges) * mbps))
        return laps * lap + float(np.sum(np.clip(rest - edges[:-1], 0, np.diff(edges)) * mbps))

    seconds = replayed.transmission_seconds(mbit * MBIT, start_s)
    assert seconds > 0
    slack = 1e-9 * (sent(start_s + seconds) + 300 * (start_s + seconds))  # rounding of Mbit, and of moments
    assert sent(start_s + seconds) - sent(start_s) == pytest.approx(mbit, abs=slack)


def test_a_riemann_sum_of_the_rate_reaches_the_bits_when_the_transmission_ends() -> None:
    rng = np.random.default_rng(8)
    time_s = np.concatenate([[0.0], np.cumsum(rng.uniform(0.2, 3, 30))])
    replayed = Trace("drawn", time_s, np.where(rng.random(31) < 0.3, 0.0, rng.uniform(0, 20, 31)))
    for start_s, mbit in [(0.0, 30.0), (11.7, 300.0), (500.0, 1500.0)]:
        tick = 1e-3
        moments = start_s + tick * (np.arange(round(replayed.transmission_seconds(mbit * MBIT, start_s) / tick)) + 0.5)
        assert tick * sum(replayed.rate(at_s) for at_s in moments) == pytest.approx(mbit, rel=2e-3)


# --- files


def test_a_file_becomes_a_trace_named_after_it(tmp_path: Path) -> None:
    read = Trace.read(write(tmp_path, "time_s,mbps\n0,2\n1,0\n3,4\n4,1\n", "tram.csv"))
    assert read.name == "tram"
    assert read.time_s.tolist() == [0, 1, 3, 4]
    assert read.mbps.tolist() == [2, 0, 4, 1]
    assert read.transmission_seconds(3 * MBIT, 0) == pytest.approx(3.25)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    read = Trace.read(write(tmp_path, "mbps,cell,time_s\n2,a,0\n5,b,1\n"))
    assert (read.time_s.tolist(), read.mbps.tolist()) == ([0, 1], [2, 5])


def test_an_all_zero_trace_is_refused(tmp_path: Path) -> None:
    said = refusal(write(tmp_path, "time_s,mbps\n0,0\n1,0\n", "dead.csv"))
    assert "trace dead" in said and "zero throughout" in said and "must have a rate above 0" in said


def test_a_negative_rate_is_refused_and_named(tmp_path: Path) -> None:
    said = refusal(write(tmp_path, "time_s,mbps\n0,3\n1,-2.5\n"))
    assert "-2.5" in said and "must be at least 0" in said


@pytest.mark.parametrize("rows", ["0,3\n2,4\n2,5\n", "0,3\n2,4\n1.5,5\n"])
def test_time_that_does_not_grow_is_refused_and_named(tmp_path: Path, rows: str) -> None:
    said = refusal(write(tmp_path, f"time_s,mbps\n{rows}"))
    assert "after 2" in said and "must grow" in said


@pytest.mark.parametrize("rows", ["0,3\n1,nan\n", "0,3\nnan,4\n", "0,inf\n1,4\n"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, rows: str) -> None:
    assert "finite" in refusal(write(tmp_path, f"time_s,mbps\n{rows}"))


@pytest.mark.parametrize("text", ["", "time_s,mbps\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "at least one" in refusal(write(tmp_path, text))


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.csv"
    said = refusal(path)
    assert str(path) in said and "must be a CSV file" in said


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["time_s,rate\n0,3\n", "seconds,mbps\n0,3\n", "0,3\n1,4\n", "time_s,mbps\n0\n", "time_s,mbps\n0,fast\n"],
)
def test_a_missing_column_or_number_is_refused_with_both_names(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    said = refusal(path)
    assert str(path) in said and "time_s" in said and "mbps" in said


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00\x81" * 50, b"x" * 200_000, b"time_s,mbps\n0,3\n\x00\x00\n"],
    ids=["not utf8", "one endless line", "zero bytes"],
)
def test_a_file_that_is_no_table_at_all_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(content)
    assert str(path) in refusal(path)


# --- in the sky


def test_devices_start_their_trace_at_different_moments_that_the_weather_seed_decides(tmp_path: Path) -> None:
    path = write(tmp_path, "time_s,mbps\n0,2\n10,0\n30,4\n40,1\n")
    devices = Fleet((DeviceGroup("JetsonNano", count=5, trace=str(path)),)).devices
    offsets = {seed: [Sky.over(Weather(), seed, devices).offset_s(d) for d in devices] for seed in (0, 0, 1)}
    assert len({*offsets[0], *offsets[1]}) == 10
    assert all(0 <= offset < 50 for of in offsets.values() for offset in of)
    assert offsets[0] == [Sky.over(Weather(), 0, devices).offset_s(d) for d in devices]


def test_a_trace_replaces_link_and_fading_but_not_the_load(tmp_path: Path) -> None:
    path = write(tmp_path, "time_s,mbps\n0,2\n10,0\n30,4\n40,1\n", "bus.csv")
    (device,) = Fleet((DeviceGroup("JetsonNano", count=1, trace=str(path)),)).devices
    (plain,) = Fleet((DeviceGroup("JetsonNano", count=1),)).devices
    sky = Sky.over(Weather(), 4, (device,))
    for at_s in np.arange(0, 2000, 17.0):
        met, without = sky.conditions(device, at_s), sky.conditions(plain, at_s)
        assert met.link == "trace:bus"
        assert met.nominal_mbps == pytest.approx((20 + 0 + 40 + 10) / 50)
        assert met.rate_mbps == Trace.read(path).rate(sky.offset_s(device) + at_s)
        assert (met.slowdown, met.free_memory_mb) == (without.slowdown, without.free_memory_mb)


def test_a_fleet_with_a_missing_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    devices = Fleet((DeviceGroup("JetsonNano", trace=str(tmp_path / "gone.csv")),)).devices
    with pytest.raises(WhaleflError, match=r"gone\.csv"):
        Sky.over(Weather(), 0, devices)


def stored_traces() -> Path | None:
    folder = Path(os.environ["WHALEFL_DATA"]) / "traces" if "WHALEFL_DATA" in os.environ else None
    return folder if folder is not None and (folder / "index.csv").is_file() else None


@pytest.mark.skipif(stored_traces() is None, reason="WHALEFL_DATA names no folder with traces/index.csv")
def test_all_stored_traces_can_be_replayed_and_have_the_mean_of_the_index() -> None:
    folder = stored_traces()
    assert folder is not None
    with (folder / "index.csv").open(newline="") as file:
        means = {row["file"]: float(row["mean_mbps"]) for row in csv.DictReader(file)}
    assert {path.name for path in folder.glob("*.csv")} - {"index.csv"} == set(means)
    for name, mean in means.items():
        replayed = Trace.read(folder / name)
        # The index averages over samples, a trace over time: the two agree where the steps are even.
        assert replayed.mbps.mean() == pytest.approx(mean, rel=0.02)
        if len(set(np.diff(replayed.time_s))) == 1:
            assert replayed.mean_mbps == pytest.approx(mean, rel=0.02)
        lap = replayed.mean_mbps * replayed.duration_s
        assert replayed.transmission_seconds(3.5 * lap * MBIT, 17.0) > 3 * replayed.duration_s
