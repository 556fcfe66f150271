"""`whalefl deploy init`: everything a federation needs, in one folder for the server and one for each device."""

from __future__ import annotations

import shutil
from pathlib import Path

from whalefl.errors import require
from whalefl.federation.rounds import Federation
from whalefl.flower.deploy.app_folder import write_app
from whalefl.flower.deploy.keys import make_certificates, make_device_key, write_secret
from whalefl.flower.folders import DeviceFolder, DeviceSettings, ServerFolder, ServerSettings
from whalefl.flower.parties import federation_on_server
from whalefl.flower.terms import Deployment, to_toml
from whalefl.runs import check_vacant

_LOCAL_PORT = 9500
"""The first of the ports on which devices talk to themselves; each has its own, so that several fit on one machine."""


def create_federation(folder: Path, deployment: Deployment, host: str, port: int, inner_port: int) -> list[str]:
    """Write the folders of a server that devices reach as `host`, and of all its devices; all of it or nothing.

    Returns what its maker should know, a line each.
    """
    check_vacant(folder)
    require(bool(host) and ":" not in host, "host", host, "a name or IPv4 address, without a port")
    experiment = deployment.experiment
    require(experiment.device == "cpu", "device", experiment.device, "'cpu' in a federation")
    federation = federation_on_server(deployment)  # whatever is wrong with it is said now
    chunk_kb, model_kb = deployment.terms.chunk_kb, 4 * federation.task.axes.count // 1024 + 1
    settings = ServerSettings(chunk_kb, model_kb, port=port, inner_port=inner_port)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / ".gitignore").write_text("*\n", encoding="utf8")  # keys do not belong in a repository
        _write(folder, deployment, host, settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _remarks(deployment, federation)


def _remarks(deployment: Deployment, federation: Federation) -> list[str]:
    """Classes that no device has are never learnt, which a small fleet may not expect of its partition."""
    if deployment.terms.data == "own" or federation.task.masked is not None:
        return []
    seen = set().union(*(member.share.owned for member in federation.members))
    missing = [label for label in range(federation.task.classes) if label not in seen]
    if not missing:
        return []
    labels = ", ".join(map(str, missing))
    return [f"note            no device has examples of {labels}; --set partition.kind=iid deals out all classes"]


def _write(folder: Path, deployment: Deployment, host: str, settings: ServerSettings) -> None:
    authority, pair = make_certificates(list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
    server = ServerFolder(folder / "server")
    server.devices.mkdir(parents=True)
    server.path.chmod(0o700)
    agreed = to_toml(deployment)
    server.terms.write_text(agreed, encoding="utf8")
    server.authority.write_bytes(authority)
    server.certificate.write_bytes(pair.certificate)
    write_secret(server.key, pair.key)
    server.write_settings(settings)
    write_app(server.app)
    for index in range(len(deployment.experiment.fleet)):
        device = DeviceFolder(folder / f"device-{index}")
        device.path.mkdir(mode=0o700)
        key = make_device_key()
        device.terms.write_text(agreed, encoding="utf8")
        device.authority.write_bytes(authority)
        write_secret(device.key, key.key)
        device.write_settings(DeviceSettings(index, f"{host}:{settings.port}", settings.chunk_kb, _LOCAL_PORT + index))
        (server.devices / f"device-{index}.pub").write_bytes(key.certificate)
