"""`whalefl deploy init | server | device | status`: a federation over several machines.

Supervisors live long beside what they supervise, so only `init` imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whalefl.errors import WhaleflError, require
from whalefl.fleet.devices import KINDS, DeviceGroup, Fleet

if TYPE_CHECKING:
    from whalefl.config import Experiment

_TERMS = "federation"
_LANGUAGE = ("wikitext2",)
"""Tasks whose labels are words: which of them a device owns is its text, almost, and is not told unless asked for."""


def need_flower() -> None:
    if find_spec("flwr") is None:
        raise WhaleflError("flwr is not installed; a federation needs it: pip install 'whalefl[flower]'")


def some_fleet(devices: int) -> Fleet:
    """So many devices, from the fastest kind to the slowest and round again: kinds decide fixed levels only."""
    require(devices >= 1, "devices", devices, "at least 1")
    return Fleet(tuple(DeviceGroup(KINDS[index % len(KINDS)], count=1) for index in range(devices)))


def agreed(
    task: str | None, config: Path | None, pairs: Sequence[str], options: dict[str, Any], devices: int | None
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment and the terms that a command describes; terms are set as federation.KEY=VALUE."""
    from whalefl.cli.options import experiment_of
    from whalefl.config import assignments

    terms = [pair for pair in pairs if pair.startswith(f"{_TERMS}.")]
    others = [pair for pair in pairs if not pair.startswith(f"{_TERMS}.")]
    experiment = experiment_of(task, config, others, options)
    if devices is not None:
        experiment = replace(experiment, fleet=some_fleet(devices))
    told = any(pair.startswith("aggregation.label_ownership") for pair in others)
    if experiment.task in _LANGUAGE and not told:
        experiment = replace(experiment, aggregation=replace(experiment.aggregation, label_ownership=False))
    values: dict[str, Any] = assignments(terms, "--set").get(_TERMS, {})
    return experiment, values


def init(
    task: str | None,
    config: Path | None,
    pairs: Sequence[str],
    options: dict[str, Any],
    devices: int | None,
    host: str,
    port: int,
    out: Path,
) -> None:
    need_flower()
    from whalefl.flower.deploy.setup import create_federation
    from whalefl.flower.terms import Deployment, terms_of

    experiment, values = agreed(task, config, pairs, options, devices)
    deployment = Deployment(experiment, terms_of(values))
    create_federation(out, deployment, host, port, port + 1)
    print(f"a federation of {len(experiment.fleet)} devices: {experiment.method} on {experiment.task}")
    print(f"on the server   whalefl deploy server {out / 'server'}")
    print(f"copy            {out / 'device-N'} to device N, by a safe way: it holds the device's key")
    print("on device N     whalefl deploy device device-N")
    print(f"then            whalefl deploy status {out / 'server'}")


def server(folder: Path) -> None:
    need_flower()
    from whalefl.flower.deploy.server import run_server
    from whalefl.flower.folders import ServerFolder

    _log_plainly()
    run_server(ServerFolder(folder))


def device(folder: Path) -> None:
    need_flower()
    from whalefl.flower.deploy.device import run_device
    from whalefl.flower.folders import DeviceFolder

    _log_plainly()
    run_device(DeviceFolder(folder))


def status(folder: Path) -> None:
    from whalefl.flower.deploy.status import status_lines
    from whalefl.flower.folders import ServerFolder

    for line in status_lines(ServerFolder(folder)):
        print(line)


def _log_plainly() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would report every request
