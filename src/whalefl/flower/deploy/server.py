"""`whalefl deploy server`: Flower's SuperLink, the gate in front of it, and the run, kept going until its end."""

from __future__ import annotations

import json
import logging
import time

import tomli_w

from whalefl.errors import WhaleflError, require
from whalefl.flower.deploy.gate import Gate, GateServer
from whalefl.flower.deploy.processes import (
    Child,
    end_on_signals,
    flower_environment,
    freed,
    listens,
    program,
    run_quietly,
)
from whalefl.flower.folders import ServerFolder, ServerSettings
from whalefl.lock import only_one
from whalefl.runs import METRICS, RUN, write_json

log = logging.getLogger("whalefl.deploy")
CONNECTION = "whalefl"
_POLL_S = 0.5
_START_S = 60.0
_MOST_FAILURES = 5
"""Runs in a row that end without a new round before the server gives up."""
_SLACK = 256 * 1024
_BYTES_A_CHUNK = 256
"""What the announcement of a reply says of each of its chunks, at the most."""
_IN_USE = "already in use"
_PATIENCE_S = 5.0


def run_server(folder: ServerFolder) -> None:
    """Serve until the run is finished; whatever dies in between is started again."""
    end_on_signals()
    settings = folder.settings()
    folder.home.mkdir(exist_ok=True)
    with only_one(folder.home, _PATIENCE_S):  # the run itself holds the folder
        _serve(folder, settings)


def _serve(folder: ServerFolder, settings: ServerSettings) -> None:
    gate = Gate(
        f"127.0.0.1:{settings.inner_port}",
        folder.authority,
        most_bytes=1024 * settings.chunk_kb + _SLACK + _BYTES_A_CHUNK * (settings.model_kb // settings.chunk_kb),
        reply_bytes=2 * 1024 * settings.model_kb + _SLACK,
    )
    door = GateServer(gate, settings.host, settings.port, folder.certificate, folder.key)
    _connection(folder, settings)
    superlink: Child | None = None
    try:
        door.start(_START_S)
        log.info("listening on %s:%d; what happens is in %s", settings.host, settings.port, folder.log)
        failures, progress = 0, _progress(folder)
        while _status(folder) != "finished":
            if superlink is None or superlink.code is not None:
                if superlink is not None:
                    superlink.end()
                superlink = _start_superlink(folder, settings)
                _register(folder)
            _run(folder, superlink, door)
            failures = failures + 1 if _progress(folder) == progress else 0
            progress = _progress(folder)
            if failures >= _MOST_FAILURES:
                raise WhaleflError(f"the run failed {failures} times without finishing a round; see {folder.log}")
        log.info("finished after round %d; the model is in %s", progress, folder.run)
    finally:
        if superlink is not None:
            superlink.end()
        door.stop()


def _connection(folder: ServerFolder, settings: ServerSettings) -> None:
    """What Flower's command line needs to reach the SuperLink."""
    link = {"address": f"127.0.0.1:{settings.inner_port}", "root-certificates": str(folder.authority.resolve())}
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: link}})
    (folder.home / "config.toml").write_text(text, encoding="utf8")


def _start_superlink(folder: ServerFolder, settings: ServerSettings) -> Child:
    require(freed(settings.inner_port), "inner_port", settings.inner_port, "free on 127.0.0.1")
    command = [
        *(program("flower-superlink"), "--host", "127.0.0.1", "--port", str(settings.inner_port)),
        *("--ssl-ca-certfile", str(folder.authority.resolve())),
        *("--ssl-certfile", str(folder.certificate.resolve()), "--ssl-keyfile", str(folder.key.resolve())),
        *("--enable-supernode-auth", "--database", str(folder.database.resolve())),
        "--disable-runtime-dependency-installation",
    ]
    child = Child("superlink", command, folder.log, flower_environment(folder.home.resolve()))
    until = time.monotonic() + _START_S
    while not listens(settings.inner_port):
        if child.code is not None or time.monotonic() > until:
            child.end()
            raise WhaleflError(f"Flower's SuperLink does not start; see {folder.log}")
        time.sleep(_POLL_S / 2)
    return child


def _register(folder: ServerFolder) -> None:
    """Let the SuperLink know the devices' keys; those it knows already stay as they are."""
    known = folder.path / "registered.json"
    done = set(json.loads(known.read_text(encoding="utf8"))) if known.exists() else set()
    for key in sorted(folder.devices.glob("*.pub")):
        if key.name not in done:
            command = [program("flwr"), "supernode", "register", str(key), CONNECTION, "--name", key.stem]
            try:
                run_quietly(command, flower_environment(folder.home.resolve()), folder.log)
            except WhaleflError as error:
                if _IN_USE not in str(error):  # else it was registered just before the server was killed
                    raise
            done.add(key.name)
            write_json(known, sorted(done))


def _run(folder: ServerFolder, superlink: Child, door: GateServer) -> None:
    """One run of the app, until it ends or the SuperLink does; without its gate the server is of no use."""
    place = f"folder={json.dumps(str(folder.path.resolve()))}"
    command = [program("flwr"), "run", str(folder.app.resolve()), CONNECTION, "--stream", "-c", place]
    run = Child("run", command, folder.log, flower_environment(folder.home.resolve()))
    try:
        while run.code is None and superlink.code is None:
            if not door.running:
                raise WhaleflError("the gate for devices has closed by itself")
            time.sleep(_POLL_S)
    finally:
        run.end()


def _status(folder: ServerFolder) -> str | None:
    path = folder.run / RUN
    return str(json.loads(path.read_text(encoding="utf8"))["status"]) if path.exists() else None


def _progress(folder: ServerFolder) -> int:
    """The rounds written down so far."""
    path = folder.run / METRICS
    return path.read_text(encoding="utf8").count("\n") if path.exists() else 0
