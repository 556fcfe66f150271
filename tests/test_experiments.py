"""Tables as values: every run once, the same run under the same name, and whole runs as the unit of resuming."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from made_up import made_up
from whalefl.cli.reproduce import Options, reproduce_study
from whalefl.config import Experiment, to_toml
from whalefl.errors import WhaleflError
from whalefl.experiments.additions import CONTROL_CELLS
from whalefl.experiments.carrying import Place, carry_out_all, resolved
from whalefl.experiments.catalogue import REPORTED, STUDIES
from whalefl.experiments.cells import Cell, Need, Run, run_of, settings_of
from whalefl.experiments.claims import claims, claims_page
from whalefl.experiments.costs import Costs, guessed_seconds, measured_costs
from whalefl.experiments.headline import headline
from whalefl.experiments.pages import write_page
from whalefl.experiments.pictures import Accuracies, CoverageCurves, FisherAndSize, Panel
from whalefl.experiments.plan import Entry, Request, plan
from whalefl.experiments.protocol import MNIST, SEVEN, SIGMAS, TASKS, Setting, most_rounds
from whalefl.experiments.published import SWEEPS, TABLE1, TABLE3
from whalefl.experiments.reading import main_cell, tuned_reference
from whalefl.experiments.status import write_status
from whalefl.experiments.store import Store
from whalefl.experiments.studies import Study
from whalefl.experiments.tables import Hours
from whalefl.experiments.theorem import CoverageTable
from whalefl.experiments.trajectories import TrajectoryTable
from whalefl.experiments.tuning import method_cells, tuning_cells, with_all_seeds
from whalefl.runs import RunFolder
from whalefl.tasks.costs import level_costs
from whalefl.values import Ladder, RoundRecord

ROOT = Path(__file__).parent.parent
NOWHERE = Store(Path("does-not-exist"))
TINY = Setting("digits", "CNN@digits", target=0.05, hours=1.0, seeds=2, tier=1, tuning_hours=0.5)
SMALL = (
    ("rounds", 6),
    ("training.iterations", 1),
    ("training.batch", 4),
    ("evaluation.calibration", 8),
)


def tiny(method: str, label: str, need: Need | None = None, **changes: object) -> Cell:
    return Cell(TINY, method, label, overrides=(*SMALL, *changes.items()), like="whale", need=need)


FEDAVG, WHALE = tiny("fedavg", "FedAvg"), tiny("whale", "WHALE")
PERMUTED = tiny("prefix+replay", "permuted", Need("levels", WHALE))
CELLS = (PERMUTED, FEDAVG, WHALE)


def planned(*cells: Cell, store: Store = NOWHERE, **request: object) -> list[Entry]:
    return plan(cells, store, Costs({}), Request(**request))  # type: ignore[arg-type]


def place(folder: Path, jobs: int = 1, time_limit_s: float | None = None, together: int = 1) -> Place:
    return Place(folder / "results", folder / "work", jobs, together, time_limit_s, "whalefl reproduce tiny", "abc")


def no_listener(name: str, record: RoundRecord) -> None:
    pass


# --- identity


def test_a_run_is_named_by_what_it_is_and_not_by_where_it_is_computed() -> None:
    run = Run(Experiment(seed=3), None)
    for where in ({"device": "cuda"}, {"data_dir": "elsewhere"}, {"engine": "plain"}, {"target": 0.5}):
        assert Run(replace(run.experiment, **where), None).identity == run.identity
    others = [
        replace(run.experiment, seed=4),
        replace(run.experiment, whale=replace(run.experiment.whale, beta=1.0)),
        replace(run.experiment, evaluation=replace(run.experiment.evaluation, on="validation")),
        replace(run.experiment, wait_for=0.9),
    ]
    assert len({run.identity, *(Run(other, None).identity for other in others)}) == 5
    assert Run(run.experiment, Need("levels", WHALE)).identity != run.identity
    # Only what differs from the defaults counts: a new setting with a default leaves old names as they were.
    assert settings_of(run.experiment) == {"seed": 3}
    assert run.identity == "9d9b6fff2159"


def test_no_default_changes_under_finished_runs() -> None:
    """Runs are named by what differs from the defaults. With another default they would be others under the same names:
    then either the presets must set the old one, or the runs go. A new setting changes this mark and no run."""
    values = to_toml(Experiment())
    assert hashlib.blake2b(values.encode(), digest_size=6).hexdigest() == "9c3705cadff9"


def test_no_cost_changes_under_finished_runs() -> None:
    """Delays and the memory that a level needs follow from what is counted on the models: with other counts the same
    settings would be other runs. A faster way to compute the same must not show in them."""
    counts = [
        (name, cost.level, cost.parameters, cost.flops, cost.activation_bytes)
        for name in ("mnist", "har", "cifar10", "wikitext2")
        for cost in level_costs(made_up(name), Ladder())
    ]
    assert hashlib.blake2b(repr(counts).encode(), digest_size=6).hexdigest() == "f5d136745fd2"


def test_names_are_the_same_in_another_process() -> None:
    script = (
        "from whalefl.experiments.cells import run_of\n"
        "from whalefl.experiments.additions import CONTROL_CELLS\n"
        "print(run_of(CONTROL_CELLS[0], 2).name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == run_of(CONTROL_CELLS[0], 2).name


def test_all_runs_of_a_sweep_keep_the_threshold_of_the_run_they_sweep() -> None:
    """The unchanged one too: its own run calibrates for D rounds, in which the target may already be reached."""
    sweeps, whale = SWEEPS[MNIST.name], run_of(main_cell(MNIST, "whale"), 0)
    low, same, high = (run_of(cell, 0) for cell in sweeps["beta"])
    assert low.source == same.source == high.source == whale
    assert len({low.identity, same.identity, high.identity, whale.identity}) == 4
    assert same == run_of(sweeps["D"][1], 0) == run_of(sweeps["U_th"][1], 0)
    assert run_of(sweeps["Fisher"][0], 0) == whale  # the three scalars all calibrate


# --- plans


@pytest.mark.parametrize("name", STUDIES)
def test_a_plan_lists_every_run_once_and_what_it_needs_before_it(name: str) -> None:
    entries = planned(*STUDIES[name].cells, device="cuda")
    names = [entry.run.identity for entry in entries]
    assert len(set(names)) == len(names) > 0
    for position, entry in enumerate(entries):
        assert entry.seconds > 0 and not entry.done
        source = entry.run.source
        if source is not None:
            assert source.identity in names[:position]
        assert entry.run.experiment.rounds == most_rounds(entry.run.experiment.task, entry.run.experiment.method)
        assert not entry.run.experiment.latency.download
        assert entry.run.experiment.evaluation.on == ("validation" if name == "tuning" else "test")
        assert (entry.run.experiment.seed >= 100) == (name == "tuning")


def test_runs_that_tables_share_are_made_once() -> None:
    first, third = planned(*TABLE1.cells), planned(*TABLE3.cells)
    together = planned(*TABLE1.cells, *TABLE3.cells)
    mnist = {entry.run.identity for entry in first} & {entry.run.identity for entry in third}
    assert len(mnist) == len(SEVEN) * MNIST.seeds
    assert len(together) == len(first) + len(third) - len(mnist)
    assert [entry.run.identity for entry in planned(*STUDIES["heterogeneity"].cells)] == [
        entry.run.identity for entry in third
    ]


def test_the_issues_seeds_and_order_of_tasks() -> None:
    assert [setting.seeds for setting in SIGMAS] == [10, 5, 5]
    assert {setting.task: setting.seeds for setting in TASKS} == {"mnist": 10, "har": 10, "cifar10": 3, "wikitext2": 3}
    entries = planned(*(cell for study in REPORTED for cell in study.cells))
    order = [entry.run.experiment.task for entry in entries]
    firsts = sorted(set(order), key=order.index)
    assert firsts == ["mnist", "har", "cifar10", "wikitext2"]
    cifar = [entry.run.experiment.method for entry in entries if entry.run.experiment.task == "cifar10"]
    assert set(cifar[:9]) == {"fedavg", "heterofl", "whale"}


def test_tasks_and_seeds_can_be_chosen() -> None:
    entries = planned(*TABLE1.cells, tasks=("har",), seeds=2)
    assert len(entries) == 2 * len(SEVEN)
    assert {(entry.run.experiment.task, entry.run.experiment.seed) for entry in entries} == {("har", 0), ("har", 1)}


def test_every_method_is_tuned_with_as_many_settings() -> None:
    for setting in TASKS:
        counts = {method: len({run_of(c, 100).identity for c in method_cells(setting, method)}) for method in SEVEN}
        assert set(counts.values()) == {6}
        assert len(tuning_cells(setting)) == 6 * len(SEVEN)
    # The second target is read off a run of the grid.
    assert run_of(tuned_reference(MNIST), 100) in [run_of(cell, 100) for cell in method_cells(MNIST, "fedavg")]


# --- carrying out


def test_a_reproduction_resumes_where_it_was_interrupted(tmp_path: Path) -> None:
    store, entries = Store(tmp_path / "results"), planned(*CELLS, seeds=1)
    assert [entry.run.experiment.method for entry in entries] == ["whale", "prefix+replay", "fedavg"]
    rounds: list[str] = []

    def interrupting(name: str, record: RoundRecord) -> None:
        rounds.append(name)
        if len(rounds) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(carry_out_all(entries, Request(), place(tmp_path), interrupting))
    again = planned(*CELLS, store=store, seeds=1)
    assert [entry.done for entry in again] == [True, False, False]
    before = store.path(entries[0].run).read_bytes()
    done = [run.experiment.method for run in carry_out_all(again, Request(), place(tmp_path), no_listener)]
    assert done == ["prefix+replay", "fedavg"]
    assert store.path(entries[0].run).read_bytes() == before
    assert all(entry.done for entry in planned(*CELLS, store=store, seeds=1))
    finished = [store.find(entry.run) for entry in entries]
    assert all(one is not None and len(one.records()) == 6 for one in finished)
    whale, permuted, fedavg = (one.compact for one in finished if one is not None)
    assert (whale["status"], whale["commit"], whale["command"]) == ("finished", "abc", "whalefl reproduce tiny")
    assert whale["settings"]["training"]["iterations"] == 1
    assert permuted["need"] == ["levels", 1.0, entries[0].run.name]
    assert fedavg["levels"] == [[6, "1" * 20]] and fedavg["fisher"] is None
    for (_, chosen), (_, dealt) in zip(whale["levels"], permuted["levels"], strict=False):
        assert sorted(chosen) == sorted(dealt)
    # What was measured predicts what comes next.
    costs = measured_costs(store.folder)
    rate = fedavg["seconds"] / fedavg["time_s"][-1]
    assert costs.seconds(run_of(FEDAVG, 1).experiment) == pytest.approx(3600 * rate)
    check_the_page(store, tmp_path)


def check_the_page(store: Store, folder: Path) -> None:
    panel = Panel("digits", TINY, CELLS)
    study = Study(
        "tiny",
        "Tiny",
        "A text.",
        CELLS,
        (
            Hours(TINY, (FEDAVG, WHALE, PERMUTED), {"fedavg": 1.0}, {"fedavg": 1.0}),
            CoverageTable("coverage", CELLS),
            TrajectoryTable("sizes", WHALE, ("RaspberryPi4",)),
        ),
        (
            Accuracies("accuracy", "Accuracy.", (panel,)),
            FisherAndSize("fisher", "Fisher.", WHALE, ("RaspberryPi4",)),
            CoverageCurves("coverage", "Coverage.", CELLS),
        ),
    )
    entries = planned(*CELLS, store=store)
    page = write_page(study, store, entries).read_text()
    assert "1 of 1 (1 seed not run)" in page and "1.00x" in page and "`abc`" in page
    assert "3 of 6 runs are missing" in page
    for picture in ("accuracy", "fisher", "coverage"):
        assert (store.folder / "tiny" / f"{picture}.png").stat().st_size > 1000
    (store.folder / "STATUS.md").write_text("# Mine\n\nA note.\n")
    for _ in range(2):
        write_status(store.folder, entries)
    status = (store.folder / "STATUS.md").read_text()
    assert status.startswith("# Mine\n\nA note.\n") and status.count("missing runs: begin") == 1
    assert "| CNN@digits: FedAvg | 1 |" in status


def test_runs_go_side_by_side_and_none_starts_that_does_not_fit(tmp_path: Path) -> None:
    quick = replace(WHALE, overrides=(*SMALL, ("rounds", 2)))
    needy = replace(PERMUTED, overrides=quick.overrides, need=Need("levels", quick))
    entries = planned(quick, needy)
    long = replace(entries[-1], seconds=1e6)
    limited = place(tmp_path, jobs=2, time_limit_s=1000)
    done = [run.name for run in carry_out_all([long, *entries[:-1]], Request(), limited, no_listener)]
    assert sorted(done) == sorted(entry.run.name for entry in entries[:-1])
    assert resolved(long.run, Store(tmp_path / "results"), tmp_path) is not None
    assert list(carry_out_all(entries, Request(), place(tmp_path, time_limit_s=0.0), no_listener)) == []


def test_runs_that_train_alike_share_a_process(tmp_path: Path) -> None:
    """Two seeds of two methods, and one that needs another's levels: each file is as if its run had been alone."""
    stores = {}
    for together in (1, 3):
        where = place(tmp_path / str(together), together=together)
        stores[together] = Store(where.results)
        done = [run.name for run in carry_out_all(planned(*CELLS, seeds=2), Request(), where, no_listener)]
        assert len(set(done)) == len(done) == 6
    for entry in planned(*CELLS, seeds=2):
        alone, shared = (stores[together].find(entry.run) for together in (1, 3))
        assert alone is not None and shared is not None
        apart = {"seconds", "side_by_side"}
        assert {k: v for k, v in alone.compact.items() if k not in apart} == {
            k: v for k, v in shared.compact.items() if k not in apart
        }


def test_what_has_ended_is_kept_when_others_of_its_batch_are_interrupted(tmp_path: Path) -> None:
    """Three that train alike: one short, one that diverges, one that is interrupted after both."""
    short, wild = tiny("fedavg", "short", rounds=2), tiny("fedavg", "wild", **{"training.lr": 1e30})
    entries, store = planned(short, wild, FEDAVG, seeds=1), Store(tmp_path / "results")

    def interrupting(name: str, record: RoundRecord) -> None:
        if record.round == 4:
            raise KeyboardInterrupt

    where = place(tmp_path, together=3)
    with pytest.raises(KeyboardInterrupt):
        list(carry_out_all(entries, Request(), where, interrupting))
    kept = {entry.labels[0]: store.find(entry.run) for entry in entries}
    states = {label: None if one is None else one.compact["status"] for label, one in kept.items()}
    assert sorted(map(str, states.values())) == ["None", "diverged", "finished"]
    folders = (where.work / "digits").iterdir()
    assert sorted(RunFolder(folder).meta()["status"] for folder in folders) == ["diverged", "finished", "interrupted"]


def test_a_batch_takes_no_more_time_than_there_is(tmp_path: Path) -> None:
    entries = [replace(entry, seconds=40.0) for entry in planned(FEDAVG, WHALE, seeds=2)]
    limited = place(tmp_path, time_limit_s=100.0, together=4)
    done = list(carry_out_all(entries, Request(), limited, no_listener))
    assert len(done) >= 2  # two fit, and two more once it is seen how short they are
    sizes = {store["side_by_side"] for store in map(lambda run: Store(limited.results).find(run).compact, done)}
    assert max(sizes) == 2


def test_a_run_that_diverges_is_kept_as_what_it_is(tmp_path: Path) -> None:
    cell = replace(FEDAVG, overrides=(*SMALL, ("training.lr", 1e30), ("training.clip", 0.0)), seeds=1)
    store = Store(tmp_path / "results")
    list(carry_out_all(planned(cell, store=store), Request(), place(tmp_path), no_listener))
    (entry,) = planned(cell, store=store)
    finished = store.find(entry.run)
    assert entry.done and finished is not None and finished.diverged
    assert "diverged" in finished.compact["reason"]


def test_a_run_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(WhaleflError, match="device is 'nowhere'"):
        list(carry_out_all(planned(FEDAVG), Request(device="nowhere"), place(tmp_path), no_listener))


def test_guesses_know_tasks_methods_and_machines() -> None:
    heterofl = run_of(main_cell(MNIST, "heterofl"), 0).experiment  # whose rounds are shorter, hence more
    fedavg = run_of(main_cell(MNIST, "fedavg"), 0).experiment
    on_gpu = replace(fedavg, device="cuda")
    assert guessed_seconds(on_gpu) < guessed_seconds(fedavg) < guessed_seconds(heterofl)
    assert Costs({("cuda", "mnist", "whale"): 0.01}).seconds(on_gpu) == pytest.approx(0.01 * MNIST.horizon_s)


# --- the command


def test_the_command_prints_a_plan_and_refuses_what_it_does_not_know(tmp_path: Path, capsys) -> None:
    options = Options(tmp_path, tmp_path, None, None, "cuda", None, "mnist", None, 1, 4, 1, None, "abc")
    reproduce_study("table3", options, plan_only=True, report_only=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * len(SEVEN) + 1
    assert "seed 0" in lines[0] and "CNN@MNIST: FedAvg" in lines[0]
    assert lines[-1].startswith("21 of 21 runs are missing") and "4 side by side" in lines[-1]
    wrong = [
        ("table4", options, "did you mean 'table"),
        ("table3", replace(options, only_tasks="mnits"), "did you mean 'mnist'"),
        ("table3", replace(options, jobs=0), "jobs is 0"),
        ("table3", replace(options, seeds=0), "seeds is 0"),
    ]
    for name, given, message in wrong:
        with pytest.raises(WhaleflError, match=message):
            reproduce_study(name, given, plan_only=True, report_only=False)
    claims_file = tmp_path / "claims.md"
    reproduce_study("fisher", replace(options, claims=claims_file), plan_only=False, report_only=True)
    assert "not run yet" in claims_file.read_text() and (tmp_path / "STATUS.md").exists()


# --- pages and claims


def test_pages_without_runs_say_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for study in STUDIES.values():
        page = write_page(study, store, planned(*study.cells)).read_text()
        assert "not run yet" in page
        assert f"whalefl reproduce {study.name}" in page


def test_every_claim_is_decided_by_a_rule_and_the_page_is_written_from_results() -> None:
    listed = list(claims())
    assert len({(claim.sentence, claim.where) for claim in listed}) == len(listed)
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf8")
    assert page == claims_page(Store(ROOT / "results")), (
        "run: whalefl reproduce all --report-only --claims docs/claims.md"
    )


def test_the_readme_shows_the_results() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf8")
    assert headline(Store(ROOT / "results")) in shown, "run: whalefl reproduce all --report-only --readme README.md"


def test_committed_runs_are_small_and_belong_to_a_study() -> None:
    known = {e.run.name for study in STUDIES.values() for e in planned(*study.cells)}
    known |= {e.run.name for e in planned(*(with_all_seeds(cell) for cell in STUDIES["tuning"].cells))}
    for path in (ROOT / "results" / "runs").rglob("*.json"):
        assert path.stat().st_size < 100_000, path
        assert path.stem in known, f"{path.name} belongs to no table: its settings have changed since"
        assert json.loads(path.read_text())["identity"] == path.stem.rpartition("-")[2]
