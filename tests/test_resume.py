"""Runs that are interrupted go on where they were, and come out as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from test_cli import QUICK, whalefl
from whalefl.config import Experiment, compose
from whalefl.errors import WhaleflError
from whalefl.execution import Job, execute, make_folders
from whalefl.federation.checkpoint import load_state, save_state
from whalefl.federation.methods import make_method
from whalefl.federation.rounds import open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, simulate
from whalefl.federation.training import Training
from whalefl.fleet.devices import Fleet
from whalefl.fleet.weather import Weather
from whalefl.lock import only_one
from whalefl.rng import Seeds
from whalefl.runs import CHECKPOINT, LEVELS, METRICS, MODEL, RUN, RunFolder
from whalefl.scheduling.policies import Whale
from whalefl.tasks.task import Task
from whalefl.values import RoundRecord

LIKE = ("whale", "whalerolex", "whaledropout", "fedavg")


def experiment(method: str = "whale", rounds: int = 6) -> Experiment:
    training = {"iterations": 2, "batch": 4}
    return compose([{"method": method, "rounds": rounds, "training": training, "engine": "plain"}])


def interrupting(at: int) -> object:
    def listener(_name: str, record: RoundRecord) -> None:
        if record.round == at:
            raise KeyboardInterrupt

    return listener


def interrupted(folder: Path, at: int, method: str = "whale") -> Job:
    job = Job("one", experiment(method), folder, "whalefl run digits")
    with pytest.raises(KeyboardInterrupt):
        execute(job, interrupting(at))
    assert RunFolder(folder).meta()["status"] == "interrupted" and (folder / CHECKPOINT).exists()
    return job


def silent(_name: str, _record: RoundRecord) -> None:
    """Nobody listens."""


def same(one: Path, other: Path) -> None:
    """Two runs that ended, bit for bit the same."""
    for folder in (one, other):
        assert RunFolder(folder).meta()["status"] == "finished" and not (folder / CHECKPOINT).exists()
    for name in (METRICS, MODEL, LEVELS):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("method", LIKE)
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, method: str) -> None:
    execute(Job("one", experiment(method), tmp_path / "whole", "whalefl run digits"), silent)
    job = interrupted(tmp_path / "cut", 4, method)
    rounds = list[int]()
    execute(job, lambda _name, record: rounds.append(record.round))
    assert rounds == [5, 6]
    same(tmp_path / "whole", tmp_path / "cut")


def test_what_was_recorded_after_the_checkpoint_is_made_again(tmp_path: Path) -> None:
    """A run that is killed may have rounds in its metrics that no checkpoint holds, and half a line."""
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = interrupted(tmp_path / "cut", 2)
    lines = (tmp_path / "whole" / METRICS).read_text().splitlines(keepends=True)
    (tmp_path / "cut" / METRICS).write_text("".join(lines[:5]) + lines[5][:40])
    RunFolder(tmp_path / "cut").mark("running")
    execute(job, silent)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = interrupted(tmp_path / "cut", 3)
    (tmp_path / "cut" / CHECKPOINT).unlink()
    execute(job, silent)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_whose_recorded_rounds_have_a_gap_begins_again(tmp_path: Path) -> None:
    """A power cut may take what was written last."""
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = interrupted(tmp_path / "cut", 4)
    metrics = tmp_path / "cut" / METRICS
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    (tmp_path / "cut" / f".{CHECKPOINT}.half").write_bytes(b"half of it")
    execute(job, silent)
    same(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut").glob(".*"))


def test_a_run_that_is_interrupted_while_its_model_is_written_has_only_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = Job("one", experiment(), tmp_path / "cut", "whalefl run digits")

    def interrupted_here(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("whalefl.execution.write_served", interrupted_here)
        with pytest.raises(KeyboardInterrupt):
            execute(job, silent)
    assert RunFolder(tmp_path / "cut").meta()["status"] == "interrupted"
    execute(job, interrupting(1))
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_has_ended_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = interrupted(tmp_path / "cut", 4)
    execute(job, silent)
    before = (tmp_path / "cut" / METRICS).read_bytes()
    looks = iter([False, True])  # as it ends between the first look and the lock
    monkeypatch.setattr(RunFolder, "ended", property(lambda _folder: next(looks)))
    with pytest.raises(WhaleflError, match="a folder whose run has not ended"):
        execute(job, silent)
    assert (tmp_path / "cut" / METRICS).read_bytes() == before


def test_a_run_that_is_not_to_go_on_puts_nothing_down(tmp_path: Path) -> None:
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = Job("one", experiment(), tmp_path / "cut", "whalefl run digits", resumable=False)
    with pytest.raises(KeyboardInterrupt):
        execute(job, interrupting(3))
    assert not (tmp_path / "cut" / CHECKPOINT).exists()
    execute(job, silent)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_was_interrupted_after_its_last_round_has_none_left(tmp_path: Path) -> None:
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    job = interrupted(tmp_path / "cut", 6)
    execute(job, interrupting(7))
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_state_is_read_back_as_it_was(corners: Task, tmp_path: Path) -> None:
    settings = Settings(rounds=4, training=Training(iterations=2, batch=4))
    method = make_method("whale", Whale(quantile=0.5))
    federation = assemble(corners, method, Fleet(), Weather(), settings, Seeds.all(0))
    *_, last = simulate(corners, method, settings=settings)
    save_state(tmp_path / "state", last.state)
    again = load_state(tmp_path / "state", federation)
    for field in ("round", "clock_s", "devices", "memory", "reports"):
        assert getattr(again, field) == getattr(last.state, field)
    for ours, theirs in ((again.weights, last.state.weights), (again.last_trained, last.state.last_trained)):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = (open_round(federation, state).orders for state in (again, last.state))
    assert [order.level for order in ours] == [order.level for order in theirs]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    job = interrupted(tmp_path / "cut", 2)
    with pytest.raises(WhaleflError, match="holds another run"):
        execute(replace(job, experiment=experiment("fedavg")), silent)


def test_two_processes_do_not_go_on_with_one_run(tmp_path: Path) -> None:
    job = interrupted(tmp_path / "cut", 2)
    with only_one(tmp_path / "cut"), pytest.raises(WhaleflError, match="another process is using"):
        execute(job, silent)
    execute(job, silent)


def test_runs_that_would_share_a_folder_are_refused_before_there_is_any(tmp_path: Path) -> None:
    jobs = [Job(str(n), experiment(), tmp_path / "same", "whalefl") for n in range(2)]
    with pytest.raises(WhaleflError, match="same folder"):
        make_folders(jobs)
    assert not list(tmp_path.iterdir())


# --- on the command line


def test_a_run_is_resumed_and_reported_on(tmp_path: Path) -> None:
    execute(Job("one", experiment(), tmp_path / "whole", "whalefl run digits"), silent)
    interrupted(tmp_path / "cut", 3)
    shown = whalefl("report", "cut", cwd=tmp_path)
    assert shown.returncode == 0 and "3 rounds" in shown.stdout
    assert "nothing yet, it is interrupted; `whalefl resume cut` goes on" in shown.stdout
    assert (tmp_path / "cut" / "report.md").read_text().startswith("# whale, seed 0\n")
    RunFolder(tmp_path / "cut").mark("running")
    assert "nothing yet, it is killed" in whalefl("report", "cut", cwd=tmp_path).stdout
    with only_one(tmp_path / "cut"):
        assert "nothing yet, it is running" in whalefl("report", "cut", cwd=tmp_path).stdout
    RunFolder(tmp_path / "cut").mark("interrupted")
    assert "Not at its end: whale, seed 0: running after 3 rounds" in (tmp_path / "cut" / "report.md").read_text()
    done = whalefl("resume", "cut", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "" and "ended by        rounds = 6" in done.stdout
    same(tmp_path / "whole", tmp_path / "cut")
    assert load_file(tmp_path / "cut" / MODEL).keys() == load_file(tmp_path / "whole" / MODEL).keys()
    again = whalefl("resume", "cut", cwd=tmp_path)
    assert again.returncode == 2 and "whose run has ended" in again.stderr


def test_a_comparison_is_resumed_with_the_runs_that_are_left(tmp_path: Path) -> None:
    arguments = ("compare", "digits", *QUICK, "--methods", "fedavg,whale", "--jobs", "1")
    assert whalefl(*arguments, "--out", "whole", cwd=tmp_path).returncode == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut = tmp_path / "cut" / "whale-seed0"  # as it is before its first round
    for path in cut.iterdir():
        if path.name not in ("config.toml", RUN, "ownership.json"):
            path.unlink()
    (cut / METRICS).touch()
    RunFolder(cut).mark("waiting")
    shown = whalefl("report", "cut", cwd=tmp_path)
    assert shown.returncode == 0
    assert "left out        whale, seed 0: waiting, and no round has been scored" in shown.stdout
    done = whalefl("resume", "cut", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same(cut, tmp_path / "whole" / "whale-seed0")
    tables = [json.loads((tmp_path / name / "table.json").read_text())["rows"] for name in ("whole", "cut")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    failed = whalefl(command, "empty", cwd=tmp_path)
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1 and "holds no run" in failed.stderr


def test_a_comparison_is_resumed_by_one_process_at_a_time(tmp_path: Path) -> None:
    done = whalefl("compare", "digits", *QUICK, "--methods", "fedavg", "--jobs", "1", "--out", "it", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with only_one(tmp_path / "it"):
        failed = whalefl("resume", "it", cwd=tmp_path)
    assert failed.returncode == 2 and "another process is using it" in failed.stderr


def test_a_federation_is_not_resumed_in_the_simulator(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", "", "whalefl deploy server", "0")
    failed = whalefl("resume", "run", cwd=tmp_path)
    assert failed.returncode == 2 and "`whalefl deploy server` resumes" in failed.stderr
