"""One experiment is one TOML file: the components' own dataclasses, composed and checked.

What is not said takes its default; the task's preset lies over the defaults, the user's file over the preset, and
`key=value` pairs over all of them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w
from pydantic import TypeAdapter, ValidationError

from whalefl.errors import WhaleflError, one_of, require, require_one_of
from whalefl.federation.methods import Method, check_method, make_method
from whalefl.federation.settings import Settings
from whalefl.fleet.devices import Fleet
from whalefl.fleet.weather import LOAD_FACTORS, Weather
from whalefl.rng import Seeds
from whalefl.scheduling.policies import Whale
from whalefl.scheduling.replay import ReplaySettings

Values = dict[str, Any]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class SeedChoice:
    """Seeds that differ from the experiment's own; what is left out is the experiment's `seed`."""

    training: int | None = None
    weights: int | None = None
    partition: int | None = None
    assignment: int | None = None
    weather: int | None = None


@dataclass(frozen=True)
class Experiment(Settings):
    """Everything a run depends on: a task and a method by name, a target accuracy, and all settings.

    `norm` is what the task's model normalises with; `device` is where the simulator computes ("cpu" or "cuda"),
    `engine` how ("workers": on all cores, "graphs": on a GPU, "auto": the faster one there), and `precision` with which
    arithmetic (on a CPU tf32 is fp32);
    `data_dir` is where data sets are looked for first.
    """

    task: str = "digits"
    method: str = "whale"
    norm: Literal["batch", "group"] = "batch"
    device: Device = "cpu"
    engine: Literal["auto", "plain", "workers", "graphs"] = "auto"
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    data_dir: str | None = None
    target: float | None = None
    seed: int = 0
    seeds: SeedChoice = field(default_factory=SeedChoice)
    fleet: Fleet = field(default_factory=Fleet)
    weather: Weather = field(default_factory=Weather)
    whale: Whale = field(default_factory=Whale)
    replay: ReplaySettings = field(default_factory=ReplaySettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method(self.method)
        if self.target is not None:
            require(0 < self.target < 1, "target", self.target, "an accuracy between 0 and 1")

    def all_seeds(self) -> Seeds:
        chosen = {key: value for key, value in asdict(self.seeds).items() if value is not None}
        return Seeds(**{**asdict(Seeds.all(self.seed)), **chosen})

    def make_method(self) -> Method:
        return make_method(self.method, self.whale, self.all_seeds().training, self.replay)


def compose(layers: Iterable[Mapping[str, Any]]) -> Experiment:
    """The experiment that these layers describe, later ones over earlier ones."""
    values: Values = {}
    for layer in layers:
        values = merged(values, _with_weather(layer))
    try:
        return TypeAdapter(Experiment).validate_json(json.dumps(values, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        raise WhaleflError(_sentence(error, values)) from None


def _with_weather(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The layer with a weather's name replaced by what it stands for; whatever else is set of the weather stays."""
    name = layer.get("weather")
    if not isinstance(name, str):
        return layer
    require_one_of("weather", name, LOAD_FACTORS)
    return {**layer, "weather": {"load_factor": LOAD_FACTORS[name]}}


def preset(name: str) -> Values:
    """A preset that comes with the package: `TASK`, `TASK/METHOD`, or `paper`; empty if unknown."""
    path = files("whalefl").joinpath("configs", f"{name}.toml")
    return tomllib.loads(path.read_text(encoding="utf8")) if path.is_file() else {}


def read_toml(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise WhaleflError(f"config is {str(path)!r}, which cannot be read; it must be a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WhaleflError(f"config is {str(path)!r}, which is not valid TOML: {error}") from error


def assignments(pairs: Sequence[str], option: str) -> Values:
    """The layer that `key=value` pairs describe; keys may be dotted, values are TOML or plain words."""
    values: Values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise WhaleflError(f"{option} is {pair!r}; it must be key=value")
        values = merged(values, _with_weather(nested(key.strip(), toml_value(text.strip()))))
    return values


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none: rough is a word, 0.5 a number."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(experiment: Experiment) -> str:
    """The full configuration; reading it back gives the same experiment."""
    return tomli_w.dumps(_without_none(asdict(experiment)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value]
    return value


def nested(key: str, value: Any) -> Values:
    """A dotted key and its value as nested tables."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return {**value}


def merged(below: Values, above: Mapping[str, Any]) -> Values:
    """One layer over another: tables are merged key by key, anything else is replaced."""
    result = dict(below)
    for key, value in above.items():
        both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_tables else value
    return result


def _sentence(error: ValidationError, values: Values) -> str:
    """One sentence about the first thing that is wrong."""
    details = error.errors(include_url=False)
    path = _path(details[0]["loc"], values)
    key = ".".join(str(part) for part in path)
    kind, given = details[0]["type"], details[0]["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        inside = [dotted for dotted in _dotted_keys(Experiment) if dotted.rpartition(".")[2] == path[-1]]
        wanted = " or ".join(inside) or one_of(str(path[-1]), _known_keys(path[:-1]))
        return f"{key} is not a known key; it must be {wanted}"
    if kind == "value_error":
        said = str(details[0]["ctx"]["error"])
        return f"{key}.{said}" if key else said
    if kind == "missing":
        return f"{key} is missing; it must be given"
    right = [
        d["msg"].removeprefix("Input should be ").replace("an object", "a table")
        for d in details
        if _path(d["loc"], values) == path
    ]
    return f"{key} is {given!r}; it must be {' or '.join(dict.fromkeys(right))}"


def _path(location: tuple[int | str, ...], values: Any) -> list[int | str]:
    """The part of an error's location that exists in the user's values (the rest names branches of a union)."""
    path: list[int | str] = []
    for part in location:
        if isinstance(values, Mapping):
            path.append(part)
            if part not in values:
                break
            values = values[str(part)]
        elif isinstance(values, list) and isinstance(part, int):
            path.append(part)
            values = values[part]
        else:
            break
    return path


def _dotted_keys(table: Any) -> Iterator[str]:
    """All keys of a table and of the tables in it."""
    hints = get_type_hints(table)
    for f in fields(table):
        yield f.name
        if is_dataclass(hints[f.name]):
            yield from (f"{f.name}.{inner}" for inner in _dotted_keys(hints[f.name]))


def _known_keys(path: Sequence[int | str]) -> list[str]:
    """The keys of the table at `path`."""
    table: Any = Experiment
    for part in path:
        if isinstance(part, str):
            table = get_type_hints(table)[part]
            inner = [arg for arg in getattr(table, "__args__", ()) if is_dataclass(arg)]
            table = inner[0] if inner else table
    return [f.name for f in fields(table)] if is_dataclass(table) else []
