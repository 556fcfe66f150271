"""From records to tables: when a target counts as reached, what is only a bound, and what a report leaves behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whalefl.report.comparison import Bounded, Row, compare, geometric_mean, paired_ratio
from whalefl.report.page import write_report
from whalefl.report.plots import median_curve
from whalefl.report.summary import RunSummary, final_accuracy, first_crossing, mean_share, summarise, time_to_target
from whalefl.report.table import HEADER, cells, markdown, notes
from whalefl.runs import DIVERGED, RunFolder
from whalefl.values import Coverage, Delay, DeviceReport, Energy, RoundRecord

PNG = b"\x89PNG\r\n\x1a\n"


def device(index: int = 0, kind: str = "JetsonNano", level: int = 1, fisher: float | None = None) -> DeviceReport:
    """A device that spends 2 + 1 J and sends 100 bytes (and receives 900, which are not counted)."""
    return DeviceReport(
        device=index,
        kind=kind,
        level=level,
        share=0.25 ** (level - 1),
        loss=1.0,
        utility=None,
        fisher=fisher,
        known=Delay(1.0, 1.0),
        true=Delay(1.0, 1.0),
        unit_s=1.0,
        energy=Energy(computing_j=2.0, radio_j=1.0),
        link="lte",
        rate_mbps=20.0,
        slowdown=1.0,
        free_memory_mb=100.0,
        bytes_up=100,
        bytes_down=900,
    )


def round_record(
    number: int, time_s: float, accuracy: float | None, devices: Sequence[DeviceReport] = (device(),)
) -> RoundRecord:
    return RoundRecord(
        round=number,
        time_s=time_s,
        round_s=1.0,
        accuracy=accuracy,
        loss=None,
        metrics={},
        train_loss=1.0,
        threshold=None,
        preferred_s=None,
        coverage=Coverage(1, 0.0, 0.0, 0, ()),
        devices=tuple(devices),
    )


def curve(*accuracies: float | None, step_s: float = 10.0) -> list[dict[str, Any]]:
    """The records of a run with one round every `step_s`."""
    rounds = [round_record(n, n * step_s, accuracy) for n, accuracy in enumerate(accuracies, start=1)]
    return [json.loads(json.dumps(asdict(one))) for one in rounds]


def run(
    reached_s: float | None, time_s: float = 100.0, rounds: int = 50, reached_round: int | None = None, **others: Any
) -> RunSummary:
    """A run that reached the target at `reached_s`, or never until `time_s`."""
    if reached_s is not None and reached_round is None:
        reached_round = round(reached_s)
    values: dict[str, Any] = {"final_accuracy": 0.9, "mean_share": 0.5, "energy_j": 10.0, "bytes_sent": 1000}
    return RunSummary(
        rounds=rounds,
        time_s=time_s,
        round_s=time_s / rounds,
        reached_s=reached_s,
        reached_round=reached_round,
        crossed_s=reached_s,
        **{**values, **others},
    )


def only_row(*runs: RunSummary) -> Row:
    (row,) = compare({"whale": dict(enumerate(runs))})
    return row


# --- time to target


def test_the_target_is_reached_at_the_first_of_five_evaluations_whose_mean_is_there() -> None:
    # Means of five: from round 1 0.62, 2: 0.66, 3: 0.72, 4: 0.80, 5: 0.86. A single evaluation is there in round 1.
    records = curve(0.7, 0.5, 0.5, 0.6, 0.8, 0.9, 0.8, 0.9, 0.9)
    reached = time_to_target(records, 0.79)
    assert reached is not None and (reached["round"], reached["time_s"]) == (4, 40.0)
    assert first_crossing(records, 0.7) == 10.0
    assert first_crossing(records, 0.75) == 50.0


def test_the_round_counts_from_which_the_mean_holds_even_if_it_is_itself_below() -> None:
    reached = time_to_target(curve(0.1, 0.5, 1.0, 1.0, 1.0, 1.0), 0.9)
    assert reached is not None and reached["round"] == 2


def test_a_single_peak_crosses_the_target_without_reaching_it() -> None:
    records = curve(0.1, 0.95, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert time_to_target(records, 0.9) is None
    assert first_crossing(records, 0.9) == 20.0


def test_fewer_than_five_evaluations_reach_nothing() -> None:
    assert time_to_target(curve(0.99, 0.99, 0.99, 0.99), 0.5) is None
    assert time_to_target(curve(0.1, 0.99, 0.99, 0.99, 0.99), 0.9) is None


def test_rounds_without_evaluation_do_not_count_among_the_five() -> None:
    reached = time_to_target(curve(None, 0.5, None, 0.9, None, 0.9, 0.9, None, 0.9, 0.9, None), 0.9)
    assert reached is not None and (reached["round"], reached["time_s"]) == (4, 40.0)


@pytest.mark.parametrize("target", [0.85, 0.7, 0.37, 0.88, 0.94, 0.91, 0.47])
def test_five_evaluations_exactly_at_the_target_reach_it(target: float) -> None:
    assert time_to_target(curve(*[target] * 5), target) is not None


def test_nothing_is_reached_or_crossed_below_the_target() -> None:
    records = curve(*[0.84] * 8)
    assert time_to_target(records, 0.85) is None
    assert first_crossing(records, 0.85) is None


# --- one run in numbers


def test_the_final_accuracy_is_the_mean_over_the_last_tenth_of_the_time_and_not_of_the_rounds() -> None:
    times = [1, 2, 3, 4, 50, 89, 91, 96, 100]
    accuracies = [0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.6, 0.7, 0.9]
    rounds = [round_record(n, t, a) for n, (t, a) in enumerate(zip(times, accuracies, strict=True), start=1)]
    assert final_accuracy([asdict(one) for one in rounds]) == pytest.approx((0.6 + 0.7 + 0.9) / 3)


def test_the_final_accuracy_leaves_out_rounds_without_evaluation() -> None:
    rounds = [round_record(1, 92, 0.4), round_record(2, 95, None), round_record(3, 100, 0.6)]
    assert final_accuracy([asdict(one) for one in rounds]) == pytest.approx(0.5)


def test_the_share_trained_is_the_width_squared_averaged_over_devices_and_rounds() -> None:
    first = round_record(1, 1, None, [device(0, level=1), device(1, level=5)])
    second = round_record(2, 2, None, [device(0, level=2), device(1, level=3)])
    # 1, 1/256, 1/4, 1/16
    expected = (1 + 1 / 256 + 1 / 4 + 1 / 16) / 4
    assert mean_share([asdict(first), asdict(second)]) == pytest.approx(expected)


def test_energy_and_bytes_are_counted_up_to_and_with_the_round_that_reached_the_target() -> None:
    summary = summarise(curve(0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9), target=0.9)
    assert (summary.reached_round, summary.reached_s, summary.crossed_s) == (3, 30.0, 30.0)
    assert (summary.energy_j, summary.bytes_sent) == (9.0, 300)
    assert (summary.rounds, summary.time_s) == (7, 70.0)


@pytest.mark.parametrize("target", [0.95, None])
def test_energy_and_bytes_of_the_whole_run_if_the_target_was_not_reached_or_there_is_none(
    target: float | None,
) -> None:
    summary = summarise(curve(*[0.9] * 7), target=target)
    assert (summary.reached_round, summary.reached_s, summary.crossed_s) == (None, None, None)
    assert (summary.energy_j, summary.bytes_sent) == (21.0, 700)


# --- medians with runs that never reached the target


def test_the_median_of_an_odd_number_of_seeds() -> None:
    row = only_row(run(30.0), run(10.0), run(20.0))
    assert (row.seeds, row.reached, row.time_s, row.rounds) == (3, 3, Bounded(20.0), Bounded(20))


def test_the_median_of_an_even_number_of_seeds_is_the_middle_of_two() -> None:
    assert only_row(run(40.0), run(10.0), run(30.0), run(20.0)).time_s == Bounded(25.0)


def test_a_run_that_never_reached_is_later_than_all_that_did() -> None:
    row = only_row(run(None), run(10.0), run(20.0))
    assert (row.reached, row.time_s) == (2, Bounded(20.0))


def test_the_median_is_a_bound_if_its_middle_never_reached() -> None:
    row = only_row(run(None), run(10.0), run(None))
    assert (row.reached, row.time_s) == (1, Bounded(100.0, "≥"))
    assert only_row(run(None), run(20.0)).time_s == Bounded(60.0, "≥")
    assert only_row(run(None), run(None)).time_s == Bounded(100.0, "≥")


def test_rounds_of_a_run_that_never_reached_count_as_a_bound_and_not_as_infinite() -> None:
    """The slow third seed ended at the same horizon after 15 rounds: it may have needed 16, or 60."""
    row = only_row(run(80.0, reached_round=10), run(90.0, reached_round=20), run(None, rounds=15))
    assert row.rounds == Bounded(15, "≥")


def test_energy_of_a_run_that_never_reached_counts_as_a_bound_and_not_as_infinite() -> None:
    row = only_row(run(80.0, energy_j=100.0), run(90.0, energy_j=200.0), run(None, energy_j=150.0))
    assert row.energy_j == Bounded(150.0, "≥")


def test_energy_and_bytes_are_exact_where_the_bound_lies_above_the_middle() -> None:
    row = only_row(
        run(80.0, energy_j=100.0, bytes_sent=10),
        run(90.0, energy_j=200.0, bytes_sent=20),
        run(None, energy_j=250.0, bytes_sent=25),
    )
    assert (row.energy_j, row.bytes_sent) == (Bounded(200.0), Bounded(20.0))


# --- speed-ups


@pytest.mark.parametrize(
    ("reference", "method", "ratio"),
    [
        (run(60.0), run(20.0), Bounded(3.0)),
        (run(20.0), run(80.0), Bounded(0.25)),
        (run(None, time_s=100.0), run(20.0, time_s=77.0), Bounded(5.0, "≥")),
        (run(20.0, time_s=77.0), run(None, time_s=100.0), Bounded(0.2, "≤")),
        (run(None), run(None), None),
    ],
    ids=["sooner", "later", "only the method reached", "only the reference reached", "neither"],
)
def test_a_speedup_is_exact_or_a_bound_or_not_decided(
    reference: RunSummary, method: RunSummary, ratio: Bounded | None
) -> None:
    assert paired_ratio(reference, method) == ratio


def test_geometric_means_by_hand() -> None:
    assert geometric_mean([]) is None
    two = geometric_mean([Bounded(2.0), Bounded(8.0)])
    three = geometric_mean([Bounded(1.0), Bounded(3.0), Bounded(9.0)])
    undone = geometric_mean([Bounded(4.0), Bounded(0.25)])
    assert two is not None and two.value == pytest.approx(4.0)
    assert three is not None and three.value == pytest.approx(3.0)
    assert undone is not None and undone.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("signs", "sign"),
    [(["", ""], ""), (["", "≥"], "≥"), (["≥", "≥"], "≥"), (["≤", ""], "≤"), (["≥", "≤"], "~"), (["≥", "", "≤"], "~")],
)
def test_a_geometric_mean_is_bounded_as_its_parts_are(signs: list[str], sign: str) -> None:
    mean = geometric_mean([Bounded(2.0, one) for one in signs])
    assert mean is not None and mean.sign == sign


def test_speedups_are_paired_by_seed() -> None:
    reference = {0: run(10.0), 1: run(90.0)}
    _, row = compare({"fedavg": reference, "whale": {1: run(30.0), 0: run(5.0)}})
    # 10/5 = 2 and 90/30 = 3; unpaired they would be 10/30 and 90/5.
    assert row.speedup is not None
    assert row.speedup.value == pytest.approx(6**0.5)
    assert row.speedup_range == pytest.approx((2.0, 3.0))


def test_the_reference_is_the_first_and_once_as_fast_as_itself() -> None:
    rows = compare({"fedavg": {0: run(10.0)}, "whale": {0: run(5.0)}, "heterofl": {0: run(None)}})
    assert [row.label for row in rows] == ["fedavg", "whale", "heterofl"]
    speedups = [row.speedup for row in rows if row.speedup is not None]
    assert [speedup.value for speedup in speedups] == pytest.approx([1.0, 2.0, 0.1])
    assert [speedup.sign for speedup in speedups] == ["", "", "≤"]


def test_speedups_against_a_reference_that_never_reached() -> None:
    rows = compare({"fedavg": {0: run(None)}, "whale": {0: run(50.0)}, "heterofl": {0: run(None)}})
    assert [row.speedup is None for row in rows] == [True, False, True]
    assert rows[1].speedup is not None
    assert (rows[1].speedup.value, rows[1].speedup.sign) == (pytest.approx(2.0), "≥")


def test_accuracies_are_averaged_with_their_sample_standard_deviation() -> None:
    row = only_row(*(run(1.0, final_accuracy=accuracy, mean_share=accuracy / 2) for accuracy in (0.8, 0.9, 1.0)))
    assert (row.final_accuracy, row.spread, row.mean_share) == pytest.approx((0.9, 0.1, 0.45))
    assert only_row(run(1.0)).spread == 0.0


# --- the table


COLUMNS = ("method", "reached", "time", "rounds", "speed-up", "accuracy", "share", "energy", "sent")
"""What the columns hold, in their order; the header may word it differently."""


def table(*rows: Row) -> list[dict[str, str]]:
    return [dict(zip(COLUMNS, texts, strict=True)) for texts in cells(rows)]


def test_cells_of_a_method_that_always_reached() -> None:
    rows = compare(
        {
            "fedavg": {0: run(40.0), 1: run(90.0)},
            "whale": {
                0: run(20.0, final_accuracy=0.8, energy_j=1200.0, bytes_sent=3_000_000, mean_share=0.333),
                1: run(30.0, final_accuracy=0.9, energy_j=1300.0, bytes_sent=4_000_000, mean_share=0.333),
            },
        }
    )
    whale = table(*rows)[1]
    # 40/20 = 2 and 90/30 = 3: the geometric mean is sqrt 6 = 2.449; the deviation of 0.8 and 0.9 is 0.0707.
    assert whale.pop("speed-up").replace(" ", "") == "2.45x(2.00-3.00)"
    assert whale == {
        "method": "whale",
        "reached": "2 of 2",
        "time": "25 s",
        "rounds": "25",
        "accuracy": "85.0 ± 7.1 %",
        "share": "33 %",
        "energy": "1.25 kJ",
        "sent": "3.5 MB",
    }


def test_cells_of_a_method_that_never_reached() -> None:
    rows = compare({"fedavg": {0: run(40.0)}, "heterofl": {0: run(None, time_s=400.0, energy_j=5e6, bytes_sent=2000)}})
    assert table(*rows)[1] == {
        "method": "heterofl",
        "reached": "0 of 1",
        "time": "≥400 s",
        "rounds": "≥50",
        "speed-up": "≤0.10x",
        "accuracy": "90.0 %",
        "share": "50 %",
        "energy": "≥5 MJ",
        "sent": "≥2 kB",
    }


def test_every_column_has_a_heading() -> None:
    assert len(HEADER) == len(COLUMNS) == len(set(HEADER))


def test_a_speedup_between_two_runs_that_never_reached_is_not_decided() -> None:
    rows = compare({"fedavg": {0: run(None)}, "heterofl": {0: run(None)}})
    assert [row["speed-up"] for row in table(*rows)] == ["not decided", "not decided"]


@pytest.mark.parametrize(
    ("energy_j", "texts"),
    [(0.0, {"0 J"}), (1.0, {"1 J"}), (999.7, {"1000 J", "1 kJ"}), (2.5e9, {"2500 MJ", "2.5 GJ"})],
)
def test_energy_is_written_without_exponents(energy_j: float, texts: set[str]) -> None:
    (row,) = table(only_row(run(1.0, energy_j=energy_j)))
    assert row["energy"] in texts


def test_markdown_has_a_header_a_rule_and_a_line_for_each_method() -> None:
    lines = markdown(compare({"fedavg": {0: run(10.0)}, "whale": {0: run(5.0)}})).splitlines()
    assert len(lines) == 4
    assert lines[0] == "| " + " | ".join(HEADER) + " |"
    assert set(lines[1]) == {"|", "-", " "}
    assert lines[3].startswith("| whale | 1 of 1 | 5 s | ")
    assert {line.count("|") for line in lines} == {len(HEADER) + 1}


def test_notes_name_the_target_and_the_reference() -> None:
    assert "85 %" in notes(0.85, "fedavg") and "fedavg" in notes(0.85, "fedavg")
    assert "No target" in notes(None, "fedavg")


# --- curves


def test_the_median_curve_holds_values_until_the_next_one() -> None:
    grid, middle = median_curve([([0.0, 10.0, 20.0], [1.0, 2.0, 3.0])])
    assert (grid[0], grid[-1]) == (0.0, 20.0)
    for at_s, value in zip(grid, middle, strict=True):
        assert value == (1.0 if at_s < 10 else 2.0 if at_s < 20 else 3.0)


def test_the_median_curve_spans_the_time_that_all_curves_cover() -> None:
    curves = [([5.0, 30.0], [1.0, 1.0]), ([0.0, 20.0], [2.0, 2.0]), ([1.0, 40.0], [9.0, 9.0])]
    grid, middle = median_curve(curves)
    assert (grid[0], grid[-1]) == (5.0, 20.0)
    assert set(middle) == {2.0}


def test_the_median_is_taken_at_each_moment() -> None:
    curves = [([0.0, 10.0, 20.0], [0.0, 5.0, 5.0]), ([0.0, 20.0], [1.0, 1.0]), ([0.0, 20.0], [3.0, 3.0])]
    grid, middle = median_curve(curves)
    assert np.array_equal(middle, np.where(grid < 10, 1.0, 3.0))


# --- the whole report


def stored(path: Path, rounds: Sequence[RoundRecord]) -> RunFolder:
    folder = RunFolder.create(path, "", "whalefl run", "1.0")
    for one in rounds:
        folder.append(one)
    return folder


def rounds_of(accuracies: Sequence[float], step_s: float, fisher: float | None = None) -> list[RoundRecord]:
    pair = [device(0, "JetsonNano", 2, fisher), device(1, "RaspberryPi4", 3, fisher)]
    return [round_record(n, n * step_s, accuracy, pair) for n, accuracy in enumerate(accuracies, start=1)]


def comparison(folder: Path, fisher: float | None) -> Mapping[str, Mapping[int, RunFolder]]:
    slow, fast = [0.1, 0.5, *[0.9] * 6], [0.5, *[0.9] * 7]
    return {
        "fedavg": {seed: stored(folder / f"fedavg-{seed}", rounds_of(slow, 20.0)) for seed in (0, 1)},
        "whale": {seed: stored(folder / f"whale-{seed}", rounds_of(fast, 10.0, fisher)) for seed in (0, 1)},
    }


def test_a_report_leaves_a_table_a_page_and_pictures(tmp_path: Path) -> None:
    rows = write_report(tmp_path, comparison(tmp_path, fisher=3.5), 0.9, "whalefl compare digits")
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert written == {"table.json", "report.md", "accuracy.png", "levels.png", "fisher.png"}
    for name in ("accuracy.png", "levels.png", "fisher.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    # fedavg reaches 0.9 in round 3 after 60 s, whale in round 2 after 20 s.
    assert [(row.label, row.time_s, row.rounds) for row in rows] == [
        ("fedavg", Bounded(60.0), Bounded(3)),
        ("whale", Bounded(20.0), Bounded(2)),
    ]
    assert rows[1].speedup is not None and rows[1].speedup.value == pytest.approx(3.0)


def test_a_run_that_diverged_counts_as_one_that_never_reaches(tmp_path: Path) -> None:
    runs = {label: dict(by_seed) for label, by_seed in comparison(tmp_path, fisher=None).items()}
    runs["fedavg"][1].mark(DIVERGED, "training diverged")
    runs["whale"][2] = stored(tmp_path / "at-once", [])
    runs["whale"][2].mark(DIVERGED, "training diverged too")
    fedavg, whale = write_report(tmp_path, runs, 0.9, "whalefl compare digits")
    assert (fedavg.reached, fedavg.seeds, whale.reached, whale.seeds) == (1, 2, 2, 3)
    assert fedavg.time_s == Bounded((60.0 + 160.0) / 2, "≥") and whale.time_s == Bounded(20.0)
    assert whale.speedup == Bounded(pytest.approx(sqrt(3.0 * 8.0)), "≥")
    assert whale.final_accuracy == pytest.approx(0.6) and fedavg.final_accuracy == pytest.approx(0.45)
    page = (tmp_path / "report.md").read_text(encoding="utf8")
    assert "fedavg, seed 1: training diverged." in page and "whale, seed 2: training diverged too." in page
    assert page.startswith("# Comparison")
    assert whale.mean_share == pytest.approx((1 / 4 + 1 / 16) / 2)  # of the two that closed a round
    only = {label: {seed: run for seed, run in by.items() if (label, seed) in (("fedavg", 1), ("whale", 0))}
            for label, by in runs.items()}  # fmt: skip
    write_report(tmp_path, only, 0.9, "whalefl compare digits")
    assert (tmp_path / "report.md").read_text(encoding="utf8").startswith("# Comparison")  # of two, one of them shown


def test_the_table_file_holds_the_rows_the_target_and_the_command(tmp_path: Path) -> None:
    write_report(tmp_path, comparison(tmp_path, fisher=None), 0.9, "whalefl compare digits")
    content = json.loads((tmp_path / "table.json").read_text(encoding="utf8"))
    assert (content["command"], content["target"]) == ("whalefl compare digits", 0.9)
    assert [row["label"] for row in content["rows"]] == ["fedavg", "whale"]
    assert content["rows"][1]["time_s"] == {"value": 20.0, "sign": ""}
    # Two rounds of two devices until the target: 4 x 3 J and 4 x 100 bytes.
    assert content["rows"][1]["energy_j"]["value"] == pytest.approx(12.0)
    assert content["rows"][1]["bytes_sent"]["value"] == 400
    assert content["rows"][1]["mean_share"] == pytest.approx((1 / 4 + 1 / 16) / 2)


def test_the_page_shows_every_picture_there_is_and_no_other(tmp_path: Path) -> None:
    write_report(tmp_path, comparison(tmp_path, fisher=None), 0.9, "whalefl compare digits --seeds 0,1")
    page = (tmp_path / "report.md").read_text(encoding="utf8")
    assert "](accuracy.png)" in page and "](levels.png)" in page
    assert "fisher.png" not in page and not (tmp_path / "fisher.png").exists()
    assert "| fedavg |" in page and "| whale |" in page
    assert "whalefl compare digits --seeds 0,1" in page


def test_without_a_target_the_report_gives_the_whole_run_and_no_bounds(tmp_path: Path) -> None:
    write_report(tmp_path, comparison(tmp_path, fisher=3.5), None, "whalefl compare digits")
    page = (tmp_path / "report.md").read_text(encoding="utf8")
    assert "No target" in page
    # Eight rounds of 20 s, and of 10 s.
    assert "160 s" in page and "80 s" in page
    assert "≥" not in page


def test_a_kind_that_was_never_selected_in_one_seed_does_not_stop_the_report(tmp_path: Path) -> None:
    """With few clients a round, a run may end before every kind of device has had a turn."""
    nano, pi = [device(0, "JetsonNano", fisher=1.0)], [device(1, "RaspberryPi4", fisher=2.0)]
    runs = {
        "whale": {
            0: stored(tmp_path / "a", [round_record(1, 10.0, 0.5, nano), round_record(2, 20.0, 0.5, pi)]),
            1: stored(tmp_path / "b", [round_record(1, 10.0, 0.5, nano), round_record(2, 20.0, 0.5, nano)]),
        }
    }
    write_report(tmp_path, runs, 0.9, "whalefl compare digits --set clients_per_round=1")
    assert (tmp_path / "levels.png").exists()
