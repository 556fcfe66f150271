"""Configurations: layers, round trips, and one sentence for whatever is wrong."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from whalefl.config import Experiment, assignments, compose, preset, to_toml, toml_value
from whalefl.errors import WhaleflError
from whalefl.fleet.devices import DeviceGroup, Fleet
from whalefl.fleet.weather import WEATHERS
from whalefl.rng import Seeds

PRESETS = sorted(p.name.removesuffix(".toml") for p in files("whalefl").joinpath("configs").iterdir())


def test_defaults_are_the_papers() -> None:
    experiment = Experiment()
    assert (experiment.whale.beta, experiment.whale.window) == (2.0, 10)
    assert (experiment.ladder.levels, experiment.ladder.shrink) == (5, 0.5)
    assert (experiment.training.iterations, experiment.training.batch, experiment.training.momentum) == (10, 64, 0.9)
    assert len(experiment.fleet) == 20 and experiment.partition.sigma == 2


def test_later_layers_win_and_tables_merge() -> None:
    experiment = compose([{"training": {"lr": 0.5, "batch": 8}}, {"training": {"lr": 0.25}}, {"seed": 4}])
    assert (experiment.training.lr, experiment.training.batch, experiment.seed) == (0.25, 8, 4)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_loads(name: str) -> None:
    assert preset(name)
    compose([preset(name)])


def test_the_written_configuration_reads_back_as_the_same_experiment() -> None:
    fleet = Fleet((DeviceGroup("JetsonNano", 3, trace="x.csv"), DeviceGroup("RaspberryPi4", 1, widest_level=4)))
    values: list[dict[str, Any]] = [preset("digits"), {"weather": "rough", "target": 0.5}, {"whale": {"threshold": 3}}]
    experiment = compose(values)
    assert compose([tomllib.loads(to_toml(experiment))]) == experiment
    own = Experiment(fleet=fleet, seed=3)
    assert compose([tomllib.loads(to_toml(own))]) == own


def test_weather_by_name() -> None:
    assert compose([{"weather": "rough"}]).weather == WEATHERS["rough"]
    steady = compose([{"weather": {"fading": False, "load_mean_s": 60.0}}, {"weather": "rough"}]).weather
    assert steady == replace(WEATHERS["rough"], fading=False, load_mean_s=60.0)  # a name changes what it is about
    assert compose([{"weather": "rough"}, {"weather": "default"}]).weather == WEATHERS["default"]
    assert WEATHERS["rough"].load_factor == 4 and WEATHERS["calm"].load_factor == 1


def test_a_weather_by_name_stays_under_a_single_key() -> None:
    layers = [{"weather": "rough"}, assignments(["weather.fading=false"], "--set")]
    assert compose(layers).weather == replace(WEATHERS["rough"], fading=False)
    pairs = assignments(["weather=rough", "weather.fading=false"], "--set")
    assert compose([pairs]).weather == replace(WEATHERS["rough"], fading=False)


def test_seeds_follow_the_experiments_seed_unless_named() -> None:
    experiment = compose([{"seed": 7, "seeds": {"weather": 1}}])
    assert experiment.all_seeds() == Seeds(7, 7, 7, 7, 1)


def test_assignments_are_dotted_and_typed() -> None:
    pairs = ["a.b=1", "a.c=0.5", "d=rough", 'e="x y"', "f=true", "g=[1, 2]"]
    assert assignments(pairs, "--set") == {
        "a": {"b": 1, "c": 0.5},
        "d": "rough",
        "e": "x y",
        "f": True,
        "g": [1, 2],
    }
    assert toml_value("auto") == "auto"
    with pytest.raises(WhaleflError, match="--set is 'nonsense'; it must be key=value"):
        assignments(["nonsense"], "--set")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"trainin": {}}, "trainin is not a known key; .*did you mean 'training'"),
        ({"training": {"lrr": 1}}, r"training\.lrr is not a known key; .*did you mean 'lr'"),
        ({"training": {"lr": "fast"}}, r"training\.lr is 'fast'; it must be a valid number"),
        ({"training": {"lr": -1}}, r"training\.lr is -1\.0; it must be a finite number above 0"),
        ({"training": {"batch": 1}}, r"training\.batch is 1; it must be at least 2"),
        ({"rounds": "ten"}, "rounds is 'ten'; it must be a valid integer"),
        ({"rounds": 1.5}, "rounds is 1.5; it must be a valid integer"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"method": "wale"}, "method is 'wale'; it must be one of .*did you mean 'whale'"),
        ({"method": "prefix+whal"}, "method's policy is 'whal'"),
        ({"whale": {"threshold": "high"}}, r"whale\.threshold is 'high'; it must be a valid number or 'auto'"),
        ({"whale": {"threshold": 0}}, r"whale\.threshold is 0\.0; it must be a finite number above 0"),
        ({"whale": {"parts": "none"}}, r"whale\.parts is 'none'; it must be 'both', 'system' or 'training'"),
        ({"weather": "stormy"}, "weather is 'stormy'; it must be one of default, calm, rough"),
        ({"weather": {"links": []}}, r"weather\.links is empty"),
        ({"fleet": {"groups": []}}, r"fleet\.groups is empty; a fleet must have at least one device"),
        ({"fleet": {"groups": [{"kind": "iPhone"}]}}, r"fleet\.groups\.0\.kind is 'iPhone'"),
        ({"fleet": {"groups": [{"kind": "JetsonNano", "count": 0}]}}, r"fleet\.groups\.0\.count is 0"),
        ({"fleet": {"groups": [{}]}}, r"fleet\.groups\.0\.kind is missing"),
        ({"fleet": {"groups": [{"kind": "JetsonNano", "colour": 1}]}}, r"fleet\.groups\.0\.colour is not a known key"),
        ({"target": 90}, "target is 90.0; it must be an accuracy between 0 and 1"),
        ({"seed": True}, "seed is True; it must be a valid integer"),
        ({"ladder": 5}, "ladder is 5; it must be"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WhaleflError, match=sentence) as caught:
        compose([values])
    assert "\n" not in str(caught.value)
