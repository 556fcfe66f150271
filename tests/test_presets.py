"""Every preset that comes with the package loads, says what its name says, and trains a round."""

from __future__ import annotations

from importlib.resources import files

import pytest

from made_up import made_up
from whalefl.cli.options import experiment_of
from whalefl.engines import make_engine
from whalefl.federation.methods import METHODS
from whalefl.federation.simulation import assemble, rounds_of
from whalefl.tasks.catalogue import TASKS
from whalefl.tasks.digits import digits

FOLDER = files("whalefl").joinpath("configs")
SMALL = [
    "rounds=1",
    "training.iterations=1",
    "training.batch=2",
    "evaluation.calibration=4",
    'fleet.groups=[{kind="JetsonNano",count=2}]',
]


def test_there_is_a_preset_for_each_task_and_method() -> None:
    for task in TASKS:
        names = {path.name for path in FOLDER.joinpath(task).iterdir()}
        assert names == {f"{method}.toml" for method in METHODS}
        assert FOLDER.joinpath(f"{task}.toml").is_file()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TASKS)
def test_every_preset_trains_a_round(name: str, method: str) -> None:
    experiment = experiment_of(name, None, SMALL, {"method": method})
    assert (experiment.task, experiment.method) == (name, method)
    task = digits() if name == "digits" else made_up(name)
    federation = assemble(
        task, experiment.make_method(), experiment.fleet, experiment.weather, experiment, experiment.all_seeds()
    )
    (finished,) = rounds_of(federation, make_engine(experiment, task))
    assert finished.record.accuracy is not None
    assert len(finished.record.devices) == 2


def test_a_file_lies_over_the_presets_unless_it_names_its_task(tmp_path) -> None:
    (tmp_path / "over.toml").write_text("[training]\nlr = 0.5\n")
    over = experiment_of("mnist", tmp_path / "over.toml", [], {})
    assert (over.task, over.training.lr, over.target) == ("mnist", 0.5, 0.85)
    (tmp_path / "whole.toml").write_text('task = "mnist"\n')
    assert experiment_of(None, tmp_path / "whole.toml", [], {}).target is None
    assert experiment_of("mnist", None, [], {}).target == 0.85


def test_the_papers_preset_counts_uploads_only() -> None:
    from pathlib import Path

    assert not experiment_of("mnist", Path("paper"), [], {}).latency.download
    assert experiment_of("mnist", None, [], {}).latency.download


def test_a_pair_takes_the_preset_of_the_method_that_it_is_or_is_a_part_of() -> None:
    def settings(method: str) -> tuple[object, ...]:
        experiment = experiment_of("mnist", None, [], {"method": method})
        return experiment.training, experiment.whale, experiment.fleet

    assert settings("prefix+full") == settings("fedavg") != settings("whale")
    assert settings("prefix+whale-se") == settings("prefix+whale-te") == settings("whale")
    assert settings("rolling+whale") == settings("whalerolex")
    assert (
        experiment_of("mnist", None, [], {"method": "prefix+random"}).training
        == experiment_of("mnist", None, [], {"method": "rolling+full"}).training
    )
