"""`whalefl deploy init`: everything a federation needs, in one folder for the server and one for each device."""

from __future__ import annotations

import re
import shutil
from ipaddress import IPv4Address
from pathlib import Path

from whalefl.errors import require
from whalefl.federation.rounds import Federation
from whalefl.flower.deploy.app_folder import write_app
from whalefl.flower.deploy.keys import make_certificates, make_device_key, write_secret
from whalefl.flower.folders import DeviceFolder, DeviceSettings, ServerFolder, ServerSettings
from whalefl.flower.parties import federation_on_server
from whalefl.flower.terms import Deployment, to_toml
from whalefl.runs import check_vacant

_LOCAL_PORTS = 57
"""So far above the server's port are those on which devices talk to themselves (9500 and on above 9443); each has its
own, so that several devices, and several federations, fit on one machine."""
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]+(\.(?!-)[A-Za-z0-9-]+)*")


def create_federation(folder: Path, deployment: Deployment, host: str, port: int, inner_port: int) -> list[str]:
    """Write the folders of a server that devices reach as `host`, and of all its devices; all of it or nothing.

    Returns what its maker should know, a line each.
    """
    check_vacant(folder)
    require(is_host(host), "host", host, "a name or IPv4 address, without a port")
    most = 65535 - _LOCAL_PORTS - len(deployment.experiment.fleet)
    require(1 <= port <= most, "port", port, f"between 1 and {most}: the devices use ports above it")
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


def is_host(text: str) -> bool:
    """Whether this names a machine, or is an IPv4 address."""
    if text.replace(".", "").isdigit():
        try:
            return bool(IPv4Address(text))
        except ValueError:
            return False
    return _HOST.fullmatch(text) is not None


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
        device, local_port = DeviceFolder(folder / f"device-{index}"), settings.port + _LOCAL_PORTS + index
        device.path.mkdir(mode=0o700)
        key = make_device_key()
        device.terms.write_text(agreed, encoding="utf8")
        device.authority.write_bytes(authority)
        write_secret(device.key, key.key)
        device.write_settings(DeviceSettings(index, f"{host}:{settings.port}", settings.chunk_kb, local_port))
        (server.devices / f"device-{index}.pub").write_bytes(key.certificate)
