"""What a real federation agrees on: the experiment, and the terms of exchange. One file, the same on every machine."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import TypeAdapter, ValidationError

from whalefl import config
from whalefl.config import Experiment, Values, compose, read_toml
from whalefl.errors import WhaleflError, require, require_finite_number, require_one_of
from whalefl.flower.mistakes import first_mistake

_TABLE = "federation"
_LOCAL = ("data_dir", "device", "engine", "precision")
"""Settings of an experiment that may differ from machine to machine."""


@dataclass(frozen=True)
class Terms:
    """How messages are exchanged.

    A round closes when all devices asked have answered, or `deadline_s` after it opened with at least `quorum`
    answers; with fewer it is tried again. The server waits up to `wait_s` for the whole fleet to connect before the
    first round; with `stop_at_target` the run ends when the target is reached.

    `data` says where a device's examples come from: its share of the task's training set, or all of what its own
    task holds. `evaluation` says who knows the test set; devices that do gather batch-norm sums in `passes`
    exchanges before they score (as many as there are batch norms make them exact). `negotiation` is how the server
    learns a device's level: `piggyback`, with its reply of the round before, or `ask`, by an exchange of its own.

    Tensors travel in chunks of `chunk_kb`; the first message to a device carries `probe_kb` of noise, by which it
    measures its link. An update whose distance from the slice that was sent exceeds `most_change` times that slice's
    norm (or 1, where that is more) is refused.
    """

    deadline_s: float = 300.0
    quorum: int = 1
    wait_s: float = 120.0
    stop_at_target: bool = False
    data: Literal["shares", "own"] = "shares"
    evaluation: Literal["server", "devices"] = "server"
    passes: int = 3
    negotiation: Literal["piggyback", "ask"] = "piggyback"
    chunk_kb: int = 256
    probe_kb: int = 256
    most_change: float = 10.0

    def __post_init__(self) -> None:
        require_finite_number("deadline_s", self.deadline_s, above=0)
        require(self.quorum >= 1, "quorum", self.quorum, "at least 1")
        require_finite_number("wait_s", self.wait_s, least=0)
        require_one_of("data", self.data, ("shares", "own"))
        require_one_of("evaluation", self.evaluation, ("server", "devices"))
        require(self.passes >= 1, "passes", self.passes, "at least 1")
        require_one_of("negotiation", self.negotiation, ("piggyback", "ask"))
        require(8 <= self.chunk_kb <= 1024, "chunk_kb", self.chunk_kb, "between 8 and 1024")
        require(16 <= self.probe_kb <= 1024, "probe_kb", self.probe_kb, "between 16 and 1024")
        require_finite_number("most_change", self.most_change, above=0)


@dataclass(frozen=True)
class Deployment:
    """An experiment and the terms on which it runs over a network."""

    experiment: Experiment
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        devices = len(self.experiment.fleet)
        most = min(devices, self.experiment.clients_per_round or devices)
        require(self.terms.quorum <= most, "federation.quorum", self.terms.quorum, f"at most {most}, a round's devices")

    @property
    def fingerprint(self) -> str:
        """Equal on machines that agree on everything that must be equal."""
        shared = {key: value for key, value in asdict(self.experiment).items() if key not in _LOCAL}
        text = json.dumps([shared, asdict(self.terms)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def deployment_of(layers: Iterable[Mapping[str, Any]]) -> Deployment:
    """The deployment that these layers describe; the table `federation` holds the terms."""
    experiment_layers, terms = [], {}
    for layer in layers:
        experiment_layers.append({key: value for key, value in layer.items() if key != _TABLE})
        table = layer.get(_TABLE, {})
        require(isinstance(table, Mapping), _TABLE, table, "a table")
        terms.update(table)
    return Deployment(compose(experiment_layers), terms_of(terms))


def terms_of(values: Values) -> Terms:
    """The terms that a table describes; what is left out takes its default."""
    try:
        return TypeAdapter(Terms).validate_json(json.dumps(values, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        raise WhaleflError(first_mistake(error, Terms, _TABLE)) from None


def read_deployment(path: Path) -> Deployment:
    return deployment_of([read_toml(path)])


def to_toml(deployment: Deployment) -> str:
    """The whole file; reading it back gives the same deployment."""
    experiment = tomllib.loads(config.to_toml(deployment.experiment))
    return tomli_w.dumps({**experiment, _TABLE: asdict(deployment.terms)})
