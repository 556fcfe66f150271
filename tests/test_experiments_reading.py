"""Reading results: intervals and ratios against numbers worked out by hand, and the rules that decide claims."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from test_report import curve, device, round_record, run
from whalefl.config import preset
from whalefl.experiments.cells import run_of
from whalefl.experiments.curves import shares_by_round
from whalefl.experiments.headline import answers
from whalefl.experiments.protocol import CIFAR10, HAR, MNIST, WIKITEXT2
from whalefl.experiments.reading import (
    main_cell,
    metric_of,
    second_target,
    speedup_over,
    summaries,
    tuned_reference,
    untuned_reference,
)
from whalefl.experiments.store import Finished, Store
from whalefl.experiments.tables import NOT_RUN, Hours, Pair, Pairs, crossing, gain_of, speedup_text
from whalefl.experiments.theorem import CoverageTable, mean_coverage
from whalefl.experiments.trajectories import correlation, rank_correlation, restlessness, shares_by_third
from whalefl.experiments.tuning import (
    MOST_SHARE,
    TuningTable,
    borrowed,
    finalists,
    method_cells,
    preset_of,
    trial,
    winner,
    with_all_seeds,
)
from whalefl.experiments.verdicts import (
    CONFIRMED,
    REFUTED,
    TIED,
    UNDECIDED,
    AheadEarly,
    Better,
    FasterWhereMore,
    FollowsFisher,
    Larger,
    LongerThan,
    MoreInTheMiddle,
    Restless,
    Smaller,
    SmallLargeSmall,
    Sooner,
    SoonerAndNoWorse,
    Worse,
    both,
    side,
    speedup_side,
)
from whalefl.report.compact import POINTS, compact_metrics, level_lines, records_of, to_json
from whalefl.report.comparison import Bounded
from whalefl.report.statistics import COVERED, Speedup, bootstrap_interval, mean_of, speedup
from whalefl.report.summary import Record, summarise

FEDAVG, WHALE = main_cell(MNIST, "fedavg"), main_cell(MNIST, "whale")


# --- statistics


def test_three_values_have_the_interval_between_them_and_fewer_have_none() -> None:
    # All three draws are the smallest with probability 1/27, more than 2.5 %: both tails lie at the ends.
    assert bootstrap_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert bootstrap_interval([1.0, 2.0]) is None and bootstrap_interval([]) is None


def test_the_interval_is_that_of_the_mean_and_always_the_same() -> None:
    values = [float(v) for v in range(20)]
    found = bootstrap_interval(values)
    assert found == bootstrap_interval(values) and found is not None
    spread = sqrt(sum((v - 9.5) ** 2 for v in values) / 20) / sqrt(20)
    assert found[0] == pytest.approx(9.5 - 1.96 * spread, abs=0.2)
    assert found[1] == pytest.approx(9.5 + 1.96 * spread, abs=0.2)


@pytest.mark.parametrize("seeds", COVERED)
def test_intervals_of_few_values_cover_as_often_as_the_page_says(seeds: int) -> None:
    rng = np.random.default_rng(0)
    found = [bootstrap_interval(list(rng.normal(size=seeds))) for _ in range(600)]
    covered = sum(interval is not None and interval[0] <= 0 <= interval[1] for interval in found) / len(found)
    assert covered == pytest.approx(COVERED[seeds], abs=0.05)


def test_a_speedup_is_the_geometric_mean_of_paired_ratios() -> None:
    reference = {0: run(80.0, reached_round=8), 1: run(90.0, reached_round=9), 2: run(30.0), 7: run(10.0)}
    method = {0: run(40.0, reached_round=8), 1: run(20.0, reached_round=18), 2: run(10.0), 5: run(1.0)}
    found = speedup(reference, method)
    assert found.value == Bounded(pytest.approx(3.0))  # the cubic root of 2 x 4.5 x 3
    assert found.interval == (pytest.approx(2.0), pytest.approx(4.5))
    assert (found.pairs, found.seeds) == (3, 3)
    rounds = [{seed: runs[seed] for seed in (0, 1)} for runs in (reference, method)]
    in_rounds = speedup(*rounds, "rounds")
    assert in_rounds.value == Bounded(pytest.approx(exp((log(1.0) + log(0.5)) / 2))) and in_rounds.interval is None
    assert speedup_text(found) == "3.00x [2.00, 4.50]"
    crossed = replace(run(None), crossed_s=20.0)  # it was there once, and did not stay
    assert speedup({0: run(40.0)}, {0: crossed}, "crossings").value == Bounded(pytest.approx(2.0))
    assert speedup({0: run(40.0)}, {0: crossed}).value == Bounded(pytest.approx(0.4), "≤")


def test_runs_that_never_reached_are_bounds_and_pairs_of_them_say_nothing() -> None:
    reached, never = run(50.0), run(None, time_s=100.0)
    upper = speedup({0: reached, 1: reached, 2: never}, {0: never, 1: reached, 2: never})
    assert upper.value is not None and upper.value.sign == "≤"
    assert upper.value.value == pytest.approx(sqrt(0.5)) and (upper.pairs, upper.seeds) == (2, 3)
    assert speedup_text(upper).endswith("(2 of 3 pairs)")
    lower = speedup({0: never}, {0: reached})
    assert lower.value == Bounded(2.0, "≥") and lower.interval is None
    neither = speedup({0: never}, {0: never})
    assert neither.value is None and speedup_text(neither) == "neither reached (1 seed)"


def test_ranks_correlate() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # Ranks 1 2 3 4 against 1.5 1.5 3 4: covariance 4.5, sums of squares 5 and 4.5.
    assert rank_correlation([1, 2, 3, 4], [0, 0, 1, 2]) == pytest.approx(4.5 / sqrt(5 * 4.5))
    assert rank_correlation([1, 2], [5, 5]) is None


# --- compact metrics


KINDS = ("JetsonNano", "RaspberryPi4")


def varied(rounds: int) -> list[Record]:
    """A run of two devices, the second of which narrows in the last third."""
    records = []
    for number in range(1, rounds + 1):
        narrow = 3 if number > 2 * rounds / 3 else 1
        devices = (device(0, level=1, fisher=4.0), device(1, kind="RaspberryPi4", level=narrow, fisher=2.0 * number))
        records.append(round_record(number, 10.0 * number, number / rounds, devices))
    return [json.loads(json.dumps(asdict(record))) for record in records]


def test_compact_metrics_summarise_as_the_records_do() -> None:
    records = varied(30)
    compact = json.loads(to_json(compact_metrics(records, KINDS)))
    assert compact["levels"] == [[20, "11"], [10, "13"]]
    assert compact["shares"] == {"1": 1.0, "3": 0.0625}
    before, after = summarise(records, 0.7), summarise(records_of(compact), 0.7)
    assert (after.reached_s, after.reached_round, after.rounds) == (before.reached_s, before.reached_round, 30)
    assert after.final_accuracy == pytest.approx(before.final_accuracy, abs=1e-4)
    assert after.mean_share == pytest.approx(before.mean_share)
    assert after.energy_j == before.energy_j


def test_a_device_that_never_took_part_leaves_the_places_of_the_others() -> None:
    records = [
        json.loads(json.dumps(asdict(round_record(number, 10.0 * number, 0.5, devices))))
        for number, devices in enumerate([(device(1, level=2),), (device(3, level=1), device(1, level=3))], start=1)
    ]
    compact = compact_metrics(records, ["MacBookPro2018", "JetsonNano", "JetsonTX2", "JetsonNano"])
    assert level_lines(compact) == ["-2--", "-3-1"]
    read = [[(d["kind"], d["level"]) for d in record["devices"]] for record in records_of(compact)]
    assert read == [[("JetsonNano", 2)], [("JetsonNano", 3), ("JetsonNano", 1)]]
    assert summarise(records_of(compact), None).mean_share == pytest.approx(summarise(records, None).mean_share)


def test_long_runs_stay_small() -> None:
    compact = compact_metrics(varied(1000), KINDS)
    assert len(compact["coverage"]["round"]) == POINTS == len(compact["fisher"]["unit"])
    assert compact["fisher"]["JetsonNano"][0] == 4.0
    assert compact["fisher"]["RaspberryPi4"][0] == 6.0  # rounds 1 to 5: 2, 4, 6, 8, 10
    assert len(to_json(compact)) < 60_000


def test_a_run_without_rounds_is_still_written() -> None:
    assert compact_metrics([], KINDS)["rounds"] == 0


# --- reading a results folder


def keep(store: Store, cell, seed: int, accuracies: list[float], step_s: float, **more: object) -> None:
    """A finished run of a cell with one round every `step_s`."""
    compact = compact_metrics(curve(*accuracies, step_s=step_s), KINDS[:1])
    header = {"status": "finished", "task": cell.setting.task, "method": cell.method, "seconds": 1.0}
    store.save(run_of(cell, seed), {**header, "commit": "abc", "machine": "here", "device": "cpu", **compact, **more})


def rising(rounds: int, at: int, top: float = 0.9) -> list[float]:
    """0.1 until the round before `at`, then `top`."""
    return [0.1] * (at - 1) + [top] * (rounds - at + 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """WHALE reaches 85 % after half the rounds that FedAvg needs, which are as long, and ends 2 points lower."""
    store = Store(tmp_path)
    for seed, at in enumerate((20, 24, 28)):
        keep(store, FEDAVG, seed, rising(60, at, 0.95), 100.0)
        keep(store, WHALE, seed, rising(60, at // 2, 0.93), 100.0)
    return store


def test_tables_show_the_papers_number_ours_and_the_difference(store: Store) -> None:
    table = Hours(MNIST, (FEDAVG, WHALE), {"fedavg": 1.12, "whale": 0.61}, {"fedavg": 1.0, "whale": 1.84}).markdown(
        store
    )
    row = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    hours = 1200 / 3600
    assert row[:6] == ["WHALE", "0.61", f"{hours:.2f}", f"{hours - 0.61:+.2f}", "3 of 3 (7 seeds not run)", "12"]
    assert row[7:11] == ["1.84x", "2.00x [2.00, 2.00]", "+0.16", "2.00x [2.00, 2.00]"]
    pairs = Pairs("title", (Pair("WHALE vs FedAvg", WHALE, FEDAVG, 1.5),)).markdown(store)
    assert "| 1.50x | 2.00x [2.00, 2.00] | +0.50 |" in pairs
    gain = gain_of(store, FEDAVG, WHALE)
    assert gain is not None and gain.value == pytest.approx(-0.02)


def test_the_readme_says_yes_no_or_open(store: Store) -> None:
    def row(of: str) -> list[str]:
        return [cell.strip() for cell in answers(store).split(of)[1].splitlines()[0].split("|")[1:-1]]

    assert row("WHALE sooner than FedAvg?") == ["**yes**, 2.00x", *["not run yet"] * 5]
    for seed in (0, 1):
        keep(store, main_cell(HAR, "fedavg"), seed, rising(60, 20, 0.95), 60.0)
        keep(store, main_cell(HAR, "whale"), seed, rising(60, 40, 0.93), 60.0)
    assert row("WHALE sooner than FedAvg?")[3] == "open, 0.50x (2 seeds)"
    assert row("FedAvg's, points") == ["-2.0", *["not run yet"] * 2, "-2.0 (2 seeds)", *["not run yet"] * 2]
    for method in ("fedavg", "whale"):
        keep(store, main_cell(CIFAR10, method), 0, rising(60, 60, 0.5), 60.0)
    assert row("WHALE sooner than FedAvg?")[4] == "neither gets there (1 seed)"
    keep(store, WHALE, 3, rising(60, 60, 0.5), 100.0)
    keep(store, FEDAVG, 3, rising(60, 60, 0.5), 100.0)
    assert row("WHALE sooner than FedAvg?")[0] == "open, 2.00x (3 of 4 seeds)"


def test_a_diverged_run_is_censored_at_the_horizon(store: Store) -> None:
    keep(store, WHALE, 3, rising(30, 10), 100.0, status="diverged")  # it had been there
    found = summaries(store, WHALE)[3]
    assert found.reached_s is None and found.crossed_s is None and found.time_s == MNIST.horizon_s
    assert "WHALE (1 diverged)" in Hours(MNIST, (FEDAVG, WHALE)).markdown(store)


def test_a_run_that_breaks_off_at_once_counts_too(store: Store) -> None:
    keep(store, WHALE, 3, [], 100.0, status="diverged")
    keep(store, FEDAVG, 3, rising(60, 20, 0.95), 100.0)
    found = summaries(store, WHALE)[3]
    assert (found.reached_s, found.time_s, found.final_accuracy, found.rounds) == (None, MNIST.horizon_s, 0.0, 1)
    page = Hours(MNIST, (FEDAVG, WHALE)).markdown(store)
    assert "WHALE (1 diverged)" in page and "3 of 4 (6 seeds not run)" in page
    assert Sooner(WHALE, FEDAVG).find(store).verdict != CONFIRMED  # without it the claim would be
    gain = gain_of(store, FEDAVG, WHALE)
    assert gain is not None and gain.seeds == 4 and gain.value < -0.2
    assert page.splitlines()[-1].split("|")[-3:-1] == [" 100 % ", " 100.0 "]  # of the three that trained anything
    in_rounds = speedup_over(store, FEDAVG, WHALE, unit="rounds")
    assert in_rounds is not None and (in_rounds.pairs, in_rounds.seeds) == (3, 4)
    for seed in (0, 1, 2):
        keep(store, WHALE, seed, [], 100.0, status="diverged")
    row = Hours(MNIST, (FEDAVG, WHALE)).markdown(store).splitlines()[-1]
    assert "| ≤" in row and "| - |" in row and "neither" not in row  # FedAvg has reached it


def test_a_cell_of_which_all_break_off_at_once_has_been_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, WHALE, 0, [], 100.0, status="diverged")
    for table in (Hours(MNIST, (WHALE,)), CoverageTable("title", (WHALE,))):
        row = table.markdown(store).splitlines()[-1]
        assert "| WHALE" in row and "| - |" in row and NOT_RUN not in row


def test_first_crossings_are_medians_of_all_runs(store: Store) -> None:
    assert crossing(summaries(store, FEDAVG)) == f"{2400 / 3600:.2f}"
    for seed in (3, 4, 5, 6):
        keep(store, FEDAVG, seed, [0.1] * 60, 100.0)
    assert crossing(summaries(store, FEDAVG)) == f"≥{6000 / 3600:.2f} (3 of 7)"


def test_the_warm_up_is_left_out_of_long_runs_too() -> None:
    records = [{**one, "coverage": {**one["coverage"], "untouched": float(one["round"] <= 2)}} for one in varied(1000)]
    compact = compact_metrics(records, KINDS)
    run = Finished(run_of(WHALE, 0), compact)
    assert mean_coverage([run], "untouched") == pytest.approx(0.002)
    assert mean_coverage([run], "untouched", first=3) == 0


def test_texts_are_read_on_the_accuracy_on_which_fedavg_is_nearest_to_the_paper(store: Store) -> None:
    fedavg = main_cell(WIKITEXT2, "fedavg")
    assert metric_of(store, WIKITEXT2) == "accuracy" == metric_of(store, MNIST)
    keep(store, fedavg, 0, rising(20, 5, 0.08), 100.0, more={"accuracy_all": rising(20, 5, 0.45)})
    assert metric_of(store, WIKITEXT2) == "accuracy"  # the test set has no say in it
    reference = untuned_reference(WIKITEXT2)
    assert run_of(reference, 100).experiment.training.lr == preset("wikitext2")["training"]["lr"]
    keep(store, reference, 100, rising(20, 5, 0.08), 100.0, more={"accuracy_all": rising(20, 5, 0.41)})
    assert metric_of(store, WIKITEXT2) == "accuracy_all"
    assert summaries(store, fedavg)[0].final_accuracy == pytest.approx(0.45)
    found = trial(store, reference)
    assert found is not None and found.final == pytest.approx(0.41)


def test_the_second_target_is_a_share_of_what_fedavg_reaches_on_the_tuning_seeds(store: Store) -> None:
    assert second_target(store, MNIST) is None
    keep(store, tuned_reference(MNIST), 100, rising(60, 10, 0.9), 100.0)
    assert second_target(store, MNIST) is None  # one seed of two
    keep(store, tuned_reference(MNIST), 101, rising(60, 10, 0.9), 100.0)
    assert second_target(store, MNIST) == pytest.approx(0.95 * 0.9)


def test_tuning_takes_the_soonest_that_counts(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), [with_all_seeds(cell) for cell in method_cells(MNIST, "whale")]
    assert trial(store, cells[0]) is None and winner(store, MNIST, "whale") is None
    for number, cell in enumerate(cells):
        for seed in cell.all_seeds:
            keep(store, cell, seed, rising(60, 40 - number), 90.0)
    # All train the whole model: FedAvg in disguise.
    assert winner(store, MNIST, "whale") is None
    for number, cell in enumerate(cells[:3]):
        for seed in cell.all_seeds:
            keep(store, cell, seed, rising(60, 30 - number), 90.0, shares={"1": MOST_SHARE - 0.1})
    best = winner(store, MNIST, "whale")
    assert best is not None and best.cell == cells[2] and best.kept == 2
    for seed in cells[2].all_seeds:
        keep(store, cells[2], seed, rising(60, 28), 90.0, shares={"1": 0.1}, status="diverged")
    best = winner(store, MNIST, "whale")
    assert best is not None and best.cell == cells[1]


def test_the_best_two_of_one_seed_meet_again_with_the_next(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), method_cells(MNIST, "heterofl")
    for number, cell in enumerate(cells[:-1]):
        keep(store, cell, 100, rising(60, 30 - number), 90.0)
    assert finalists(store, MNIST, "heterofl") == ()  # one setting is missing
    keep(store, cells[-1], 100, rising(60, 50), 90.0)
    assert finalists(store, MNIST, "heterofl") == (with_all_seeds(cells[4]), with_all_seeds(cells[3]))
    keep(store, cells[3], 101, rising(60, 10), 90.0)
    assert winner(store, MNIST, "heterofl") is None  # the other finalist has one seed only
    keep(store, cells[4], 101, rising(60, 40), 90.0)
    best = winner(store, MNIST, "heterofl")
    assert best is not None and best.cell == with_all_seeds(cells[3])


def test_a_setting_that_breaks_off_at_once_is_tried_and_does_not_count(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), method_cells(MNIST, "fedavg")
    for number, cell in enumerate(cells[1:]):
        for seed in with_all_seeds(cell).all_seeds:
            keep(store, cell, seed, rising(60, 10 + number), 90.0)
    keep(store, cells[0], 100, [], 90.0, status="diverged")
    broken = trial(store, cells[0])
    assert broken is not None and not broken.counts and (broken.diverged, broken.share) == (1, None)
    assert "| 0 of 1 (1 diverged) |" in TuningTable(MNIST).markdown(store)
    best = winner(store, MNIST, "fedavg")
    assert best is not None and best.cell == with_all_seeds(cells[1])


def test_where_no_setting_gets_there_the_best_final_accuracy_wins(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), method_cells(MNIST, "heterofl")
    for number, cell in enumerate(cells):
        for seed in with_all_seeds(cell).all_seeds:
            keep(store, cell, seed, rising(60, 5, 0.5 + 0.01 * (number % 4)), 90.0)
    best = winner(store, MNIST, "heterofl")
    assert best is not None and best.cell == with_all_seeds(cells[3])


def test_what_was_not_tuned_takes_over_what_its_nested_relative_won_with(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), method_cells(MNIST, "heterofl")
    assert borrowed(store, MNIST, "fedrolex") is None
    for number, cell in enumerate(cells):
        for seed in with_all_seeds(cell).all_seeds:
            keep(store, cell, seed, rising(60, 30 - number), 90.0)
    other = borrowed(store, MNIST, "fedrolex")
    assert other is not None and other.cell == with_all_seeds(cells[-1])
    taken = preset_of(other, "fedrolex")
    assert taken["method"] == "fedrolex" and taken["training"] == {"lr": 0.1}
    assert [group["fixed_level"] for group in taken["fleet"]["groups"]] == [1, 1, 2, 2, 3]
    # Neither the relative itself, nor one of another policy.
    assert borrowed(store, MNIST, "heterofl") is None and borrowed(store, MNIST, "whalerolex") is None
    # Nor does one that was tuned, even if it has not won with anything yet.
    own = method_cells(MNIST, "fedrolex")[0]
    keep(store, own, own.all_seeds[0], rising(60, 5, 0.5), 90.0)
    assert borrowed(store, MNIST, "fedrolex") is None


# --- verdicts


def test_a_side_needs_the_whole_interval() -> None:
    assert side((1.1, 2.0), 1.0) == CONFIRMED
    assert side((0.5, 0.9), 1.0) == REFUTED
    assert side((0.9, 1.1), 1.0) == side(None, 1.0) == UNDECIDED


def test_a_bound_decides_only_in_its_own_direction() -> None:
    above, below = (1.2, 1.4), (0.5, 0.7)
    verdict = {
        (sign, interval): speedup_side(Speedup(Bounded(1.0, sign), interval, 3, 3))
        for sign in ("", "≥", "≤", "~")
        for interval in (above, below)
    }
    assert [key for key, value in verdict.items() if value == CONFIRMED] == [("", above), ("≥", above)]
    assert [key for key, value in verdict.items() if value == REFUTED] == [("", below), ("≤", below)]
    assert speedup_side(Speedup(None, None, 0, 3)) == UNDECIDED
    # Seven seeds in which neither got there are not outvoted by three in which both did.
    assert speedup_side(Speedup(Bounded(2.0), (1.5, 3.0), 3, 10)) == UNDECIDED


def test_two_parts_are_refuted_by_one() -> None:
    assert both(CONFIRMED, CONFIRMED) == CONFIRMED
    assert both(CONFIRMED, REFUTED) == both(UNDECIDED, REFUTED) == REFUTED
    assert both(CONFIRMED, UNDECIDED) == UNDECIDED


def test_verdicts_on_a_results_folder(store: Store) -> None:
    assert Sooner(WHALE, FEDAVG, 1.5).find(store).verdict == CONFIRMED
    assert Sooner(WHALE, FEDAVG, 1.5).find(store).figure.endswith(", more")
    assert Sooner(FEDAVG, WHALE).find(store).verdict == REFUTED
    assert Better(WHALE, FEDAVG).find(store).verdict == REFUTED
    assert Better(WHALE, FEDAVG, margin=0.03).find(store).verdict == CONFIRMED
    lower = Worse(WHALE, FEDAVG).find(store)
    assert lower.verdict == CONFIRMED and lower.figure.startswith("-") and lower.seeds == 3
    assert Worse(FEDAVG, WHALE).find(store).verdict == REFUTED
    sooner = Sooner(WHALE, FEDAVG).find(store)
    assert sooner.seeds == 3 and sooner.by_crossing.endswith("]")
    assert SoonerAndNoWorse(WHALE, FEDAVG).find(store).verdict == REFUTED
    # In the first fifth, 1,080 s, WHALE gets past its step in one run of three only.
    assert AheadEarly(WHALE, FEDAVG, share=0.2).find(store).verdict == UNDECIDED
    assert AheadEarly(WHALE, FEDAVG, share=0.4).find(store).verdict == CONFIRMED
    absent = main_cell(MNIST, "fedrolex")
    assert Sooner(absent, FEDAVG).find(store).verdict == "not run yet"
    alone = replace(WHALE, seeds=1)
    assert Sooner(alone, FEDAVG).find(store).verdict == UNDECIDED


def test_a_verdict_may_depend_on_how_a_target_counts_as_reached(store: Store) -> None:
    assert not Sooner(WHALE, FEDAVG).find(store).depends
    early = main_cell(MNIST, "whalerolex")  # there for one round long before it stays
    for seed in range(3):
        keep(store, early, seed, [0.1, 0.9, *rising(58, 40)], 100.0)
    found = Sooner(early, FEDAVG).find(store)
    assert (found.verdict, found.otherwise, found.depends) == (REFUTED, CONFIRMED, True)
    assert Sooner(WHALE, FEDAVG, target=0.94).find(store).verdict == REFUTED  # where only FedAvg gets
    assert LongerThan(FEDAVG, WHALE, target=0.5).find(store).verdict == CONFIRMED


def test_small_large_small_compares_thirds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, middle in enumerate("122"):
        levels = [[10, "5"], [10, middle], [10, "4"]]
        shares = {"1": 1.0, "2": 0.25, "4": 1 / 64, "5": 1 / 256}
        keep(store, WHALE, seed, [0.5] * 30, 100.0, levels=levels, shares=shares)
    run = store.runs(WHALE)[0]
    early, middle_share, late = shares_by_third(run)
    assert early < late < middle_share <= 100
    assert SmallLargeSmall(WHALE).find(store).verdict == CONFIRMED
    assert MoreInTheMiddle(WHALE, 2).find(store).verdict == CONFIRMED


def test_a_rounds_size_does_not_depend_on_who_trains_what(tmp_path: Path) -> None:
    store, shares = Store(tmp_path), {"1": 1.0, "2": 0.251, "3": 0.0629}
    devices = {"kinds": ["JetsonTX2", "JetsonNano", "RaspberryPi4"], "shares": shares}
    levels = [[1, "123"], [1, "132"], [1, "213"]]
    keep(store, WHALE, 0, [0.5] * 3, 100.0, levels=levels, **devices)
    assert len(set(shares_by_round(store.runs(WHALE)[0], None))) == 1


def test_sizes_that_only_shrink_are_half_of_small_large_small(tmp_path: Path) -> None:
    store, shares = Store(tmp_path), {"1": 1.0, "2": 0.25, "3": 0.0625}
    for seed in range(3):
        keep(store, WHALE, seed, [0.5] * 30, 100.0, levels=[[10, "1"], [10, "2"], [10, "3"]], shares=shares)
    grow, shrink = (MoreInTheMiddle(WHALE, than).find(store) for than in (0, 2))
    assert (grow.verdict, shrink.verdict) == (REFUTED, CONFIRMED)
    assert SmallLargeSmall(WHALE).find(store).verdict == REFUTED


def test_sizes_that_change_more_often_are_restless(tmp_path: Path) -> None:
    store, shares = Store(tmp_path), {"1": 1.0, "2": 0.25}
    devices = {"kinds": ["JetsonNano", "RaspberryPi4"], "shares": shares}
    for seed in range(3):
        keep(store, FEDAVG, seed, [0.5] * 5, 100.0, levels=[[2, "11"], [3, "12"]], **devices)
        keep(
            store,
            WHALE,
            seed,
            [0.5] * 5,
            100.0,
            levels=[[1, "11"], [1, "-2"], [1, "12"], [1, "21"], [1, "12"]],
            **devices,
        )
    calm, restless = (restlessness(store.runs(cell)[0]) for cell in (FEDAVG, WHALE))
    assert calm == pytest.approx(0.75 / 8)  # one change of 0.75 in four steps of two devices
    assert restless == pytest.approx(5 * 0.75 / 6)  # who sat out has no step to there and from there
    assert Restless(WHALE, FEDAVG).find(store).verdict == CONFIRMED
    assert Restless(FEDAVG, WHALE).find(store).verdict == REFUTED


def test_sizes_are_smaller_or_larger(tmp_path: Path) -> None:
    store, shares = Store(tmp_path), {"1": 1.0, "2": 0.25}
    for seed in range(3):
        for cell, level in ((FEDAVG, "1"), (WHALE, "2")):
            keep(store, cell, seed, [0.5] * 30, 100.0, levels=[[30, level]], shares=shares)
    smaller = Smaller(WHALE, FEDAVG).find(store)
    assert smaller.verdict == CONFIRMED == Larger(FEDAVG, WHALE).find(store).verdict
    assert smaller.figure.startswith("-75.00 points")
    assert Larger(WHALE, FEDAVG).find(store).verdict == REFUTED


def test_sizes_are_compared_with_the_fisher_information_they_were_chosen_from(tmp_path: Path) -> None:
    """Here sizes go with the round before, and against the same round."""
    store, shares = Store(tmp_path), {"1": 1.0, "5": 1 / 256}
    cell = replace(WHALE, overrides=(("whale.window", 1),))
    lines = [[1, "15"[number % 2]] for number in range(30)]
    values = [1.0 + number % 2 for number in range(30)]
    fisher = {"round": list(range(1, 31)), "all": values, "unit": values}
    keep(store, cell, 0, [0.5] * 30, 100.0, levels=lines, shares=shares, fisher=fisher)
    found = correlation(list(store.runs(cell).values()), None, "all")
    assert found is not None and found.value == pytest.approx(1.0)
    # A trace over the slice grows with it, so nothing is learnt from their going together.
    assert FollowsFisher(cell, "all").find(store).verdict == TIED
    assert FollowsFisher(cell, "unit").find(store).verdict == UNDECIDED  # one seed


def test_coverage_decides_nothing_between_methods_that_are_alike_in_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for untouched, verdict in ((0.001, UNDECIDED), (0.1, CONFIRMED)):
        for seed in range(3):
            for cell, at, left in ((FEDAVG, 20, 0.0), (WHALE, 30, untouched), (main_cell(MNIST, "fedrolex"), 25, 0.0)):
                # The first two rounds of an adaptive method leave nearly everything untouched, and do not count.
                early = [0.99 if cell is WHALE else 0.0] * 2
                coverage = {"round": list(range(1, 61)), "untouched": early + [left + at / 1e6] * 58}
                keep(store, cell, seed, rising(60, at), 100.0, coverage=coverage)
        cells = (FEDAVG, WHALE, main_cell(MNIST, "fedrolex"))
        assert FasterWhereMore(cells, "untouched").find(store).verdict == verdict


def test_means_need_values() -> None:
    assert mean_of([]) is None
    found = mean_of([0.5])
    assert found is not None and (found.value, found.interval, found.seeds) == (0.5, None, 1)
