"""The Flower client app: it hands every message to the resident worker, and the worker's answer back.

Flower starts a new process for every message, so nothing heavy is imported and nothing is kept here.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from whalefl.flower.records import from_records, to_records
from whalefl.flower.relay import Parcel, ask
from whalefl.leash import die_with_parent

_PATIENCE_S = 300.0
_MOST_BYTES = 2**31


def make_app() -> ClientApp:
    app = ClientApp()
    for register in (app.train(), app.evaluate(), app.query()):
        register(relay)
    return app


def relay(message: Message, context: Context) -> Message:
    """The worker's answer to a message; the node's configuration says where it listens and how to cut chunks."""
    die_with_parent()
    body, block = from_records(message.content, _MOST_BYTES)
    worker, chunk_kb = context.node_config["socket"], context.node_config["chunk-kb"]
    try:
        answer = ask(Path(str(worker)), Parcel(message.metadata.message_id, body, block), _PATIENCE_S)
    except OSError:  # whose text Flower would send to the server, with paths of this device in it
        raise ConnectionError("the device's worker ended, or is not there") from None
    return Message(to_records(answer.body, answer.block, int(chunk_kb) * 1024), reply_to=message)
