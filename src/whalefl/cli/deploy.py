"""`whalefl deploy init | server | device | status`: a federation over several machines.

Supervisors live long beside what they supervise, so only `init` imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whalefl.errors import WhaleflError, require
from whalefl.fleet.devices import KINDS, DeviceGroup, Fleet

if TYPE_CHECKING:
    from whalefl.flower.terms import Deployment

_LANGUAGE = ("wikitext2",)
"""Tasks whose labels are words: which of them a device owns is its text, almost, and is not told unless asked for."""


def need_flower() -> None:
    if find_spec("flwr") is None:
        raise WhaleflError("flwr is not installed; a federation needs it: pip install '.[flower]' in whalefl's folder")


def some_fleet(devices: int) -> Fleet:
    """So many devices, from the fastest kind to the slowest and round again: kinds decide fixed levels only."""
    require(devices >= 1, "devices", devices, "at least 1")
    return Fleet(tuple(DeviceGroup(KINDS[index % len(KINDS)], count=1) for index in range(devices)))


def agreed(
    task: str | None, config: Path | None, pairs: Sequence[str], options: dict[str, Any], devices: int | None
) -> Deployment:
    """The experiment and the terms that a command describes; the terms are the table `federation`.

    Of the presets a federation leaves out what is meant for virtual time, and what would tell too much.
    """
    from whalefl.cli.options import layers_of
    from whalefl.flower.terms import deployment_of

    presets, *said = layers_of(task, config, pairs, options)
    presets = {**presets, "horizon_s": None}
    if next(layer["task"] for layer in reversed(said) if "task" in layer) in _LANGUAGE:
        presets["aggregation"] = {**presets.get("aggregation", {}), "label_ownership": False}
    if devices is not None:
        given = any("fleet" in layer for layer in said)
        require(not given, "devices", devices, "left out where a fleet is given")
        said.append({"fleet": asdict(some_fleet(devices))})
    return deployment_of([presets, *said])


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

    deployment = agreed(task, config, pairs, options, devices)
    experiment = deployment.experiment
    for line in create_federation(out, deployment, host, port, port + 1):
        print(line)
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
