"""A cell of a table: a task, a method and what is set apart from the presets; with a seed it becomes a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from whalefl.config import Experiment, Values, compose, nested, preset
from whalefl.experiments.protocol import Setting, most_rounds

Overrides = tuple[tuple[str, Any], ...]
"""Dotted keys and their values; a table is a `Table`, so that cells can be compared and hashed."""


@dataclass(frozen=True)
class Table:
    """A TOML table as a value."""

    items: Overrides

    @classmethod
    def of(cls, **items: Any) -> Table:
        return cls(tuple(items.items()))


_PLACES = ("device", "engine", "data_dir", "target")
"""Where and how a run is computed, and what is read off it later: none of it makes another run."""


@dataclass(frozen=True)
class Need:
    """What a run takes over from the finished run of another cell with the same seed.

    threshold   that run's U_th, times `factor`
    levels      the levels that its devices chose, for the policy `replay`
    """

    kind: Literal["threshold", "levels"]
    of: Cell
    factor: float = 1.0


@dataclass(frozen=True)
class Cell:
    """One entry of a table or curve of a figure, before seeds.

    The presets of the task, of the `paper` and of the method on the task come first, then `overrides`. `like` names
    the method whose preset is taken, for a variant of it. `first_seed` is 0 for what is reported.
    """

    setting: Setting
    method: str
    label: str
    overrides: Overrides = ()
    like: str | None = None
    need: Need | None = None
    seeds: int | None = None
    tier: int | None = None
    first_seed: int = 0

    @property
    def rank(self) -> int:
        return self.setting.tier if self.tier is None else self.tier

    @property
    def all_seeds(self) -> range:
        count = self.setting.seeds if self.seeds is None else self.seeds
        return range(self.first_seed, self.first_seed + count)


@dataclass(frozen=True)
class Run:
    """One experiment, with what it needs of others; equal settings are the same run, whichever table asks for them."""

    experiment: Experiment
    need: Need | None

    @cached_property
    def identity(self) -> str:
        """A name made of everything that makes this run what it is."""
        content: Values = {"settings": settings_of(self.experiment)}
        if self.need is not None:
            source = run_of(self.need.of, self.experiment.seed)
            content["need"] = [self.need.kind, self.need.factor, source.identity]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def name(self) -> str:
        return f"{self.experiment.method}-seed{self.experiment.seed}-{self.identity}"

    @property
    def source(self) -> Run | None:
        """The run that must be finished before."""
        return None if self.need is None else run_of(self.need.of, self.experiment.seed)


@cache
def run_of(cell: Cell, seed: int) -> Run:
    """A cell with one of its seeds."""
    task = cell.setting.task
    own: Values = {
        "task": task,
        "method": cell.method,
        "seed": seed,
        "rounds": most_rounds(task, cell.method),
        "horizon_s": cell.setting.horizon_s,
        "target": cell.setting.target,
        "precision": cell.setting.precision,
        "evaluation": {"calibration": cell.setting.calibration},
    }
    if cell.setting.sigma is not None:
        own["partition"] = {"sigma": cell.setting.sigma}
    layers = [preset(task), preset("paper"), preset(f"{task}/{cell.like or cell.method}"), own]
    return Run(compose([*layers, *(layer(key, value) for key, value in cell.overrides)]), cell.need)


def layer(key: str, value: Any) -> Values:
    """An override as the layer of a configuration."""
    return nested(key, _toml(value))


def _toml(value: Any) -> Any:
    if isinstance(value, Table):
        return {key: _toml(inner) for key, inner in value.items}
    return [_toml(inner) for inner in value] if isinstance(value, tuple) else value


def settings_of(experiment: Experiment) -> Values:
    """What an experiment sets apart from the defaults, without where it is computed: new settings with a default do
    not make other runs of old ones.
    """
    placeless = replace(experiment, **{key: getattr(Experiment(), key) for key in _PLACES})
    return _difference(_plain(asdict(placeless)), _plain(asdict(Experiment())))


def _difference(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Values:
    found: Values = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value, default = _difference(value, default), {}
        if value != default:
            found[key] = value
    return found


def _plain(values: Any) -> Any:
    return json.loads(json.dumps(values))
