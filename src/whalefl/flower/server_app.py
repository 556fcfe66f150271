"""The Flower server app: the coordinator over Flower's grid."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from whalefl.federation.simulation import use_one_thread
from whalefl.flower.coordinator import Coordinator
from whalefl.flower.folders import ServerFolder
from whalefl.flower.parties import federation_on_server
from whalefl.flower.terms import read_deployment
from whalefl.flower.transport import GridTransport
from whalefl.leash import die_with_parent
from whalefl.lock import only_one


def make_app() -> ServerApp:
    app = ServerApp()
    app.main()(serve)
    return app


def serve(grid: Grid, context: Context) -> None:
    """Run what the server's folder says; the run's configuration names the folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would report every request
    die_with_parent()  # Flower's own way of ending may wait for a SuperLink that is gone
    use_one_thread()
    folder = ServerFolder(Path(str(context.run_config["folder"])))
    deployment = read_deployment(folder.terms)
    transport = GridTransport(grid, deployment.terms.chunk_kb * 1024)
    federation = federation_on_server(deployment)
    with only_one(folder.path):
        Coordinator(deployment, federation, folder.run, transport).run()
