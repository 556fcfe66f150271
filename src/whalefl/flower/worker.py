"""The resident worker of a device: a process that answers on a local socket for as long as the device is on.

`python -m whalefl.flower.worker FOLDER` with the device's folder, as `whalefl deploy init` made it.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whalefl.errors import WhaleflError
from whalefl.federation.rounds import Federation
from whalefl.flower.blocks import from_block, to_block
from whalefl.flower.folders import DeviceFolder
from whalefl.flower.messages import Ask, Gather, Hello, Judge, Refusal, Train, from_json, to_json
from whalefl.flower.parties import federation_on_device
from whalefl.flower.refusal import Refused
from whalefl.flower.relay import Parcel, receive, send, socket_path
from whalefl.flower.resident import Received, Resident
from whalefl.flower.terms import Deployment, read_deployment

log = logging.getLogger("whalefl.device")


def answer(resident: Resident, parcel: Parcel) -> Parcel:
    """What the device says to a message; what it will not do it says why."""
    received = Received(parcel.message, len(parcel.block), time.monotonic())
    try:
        reply, tensors = _answer(resident, parcel, received)
        return Parcel(parcel.message, to_json(reply), to_block(tensors) if tensors else b"")
    except (Refused, WhaleflError, ValueError) as error:  # a value that JSON has no word for is one
        log.warning("refused: %s", error)
        return Parcel(parcel.message, to_json(Refusal(str(error))), b"")


def _answer(resident: Resident, parcel: Parcel, received: Received) -> tuple[Any, Mapping[str, Tensor]]:
    kind = kind_of(parcel.body)
    if kind != "Hello" and not resident.greeted:
        raise Refused("this device was started again and has to be greeted first")
    match kind:
        case "Hello":
            return resident.hello(from_json(parcel.body, Hello), received), {}
        case "Ask":
            return resident.choose(from_json(parcel.body, Ask)), {}
        case "Train":
            return resident.train(from_json(parcel.body, Train), from_block(parcel.block), received)
        case "Gather":
            return resident.gather(from_json(parcel.body, Gather), from_block(parcel.block))
        case "Judge":
            return resident.judge(from_json(parcel.body, Judge), from_block(parcel.block)), {}
        case other:
            raise Refused(f"a message of kind {other!r}, which is not known here")


def kind_of(body: str) -> str:
    """The kind a body says it is; whether it is that, reading it tells."""
    try:
        return str(json.loads(body)["kind"])[:50]
    except (ValueError, KeyError, TypeError):
        raise Refused("a message body that cannot be read") from None


def serve(resident: Resident, path: Path) -> None:
    """Answer one message after the other, for ever."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(1)
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    send(connection, answer(resident, receive(connection)))
                except ConnectionError as error:
                    log.warning("an exchange broke off: %s", error)


def _federation(deployment: Deployment) -> Federation:
    """The federation with this device's data; a task of the owner's that fails is not tried for ever."""
    try:
        return federation_on_device(deployment)
    except WhaleflError:
        raise
    except Exception as error:
        log.exception("the task failed")
        name = deployment.experiment.task
        raise WhaleflError(f"task is {name!r}, which failed on this device: {type(error).__name__}: {error}") from error


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    device = DeviceFolder(folder)
    settings = device.settings()
    torch.set_num_threads(settings.threads)
    deployment = read_deployment(device.terms)
    resident = Resident(deployment, _federation(deployment), settings.device, folder)
    log.info("device %d is ready: %s", settings.device, resident.memory.curve)
    serve(resident, socket_path(folder))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except WhaleflError as error:
        print(f"whalefl: {error}", file=sys.stderr)
        sys.exit(2)
