"""A device that does not keep to what was agreed: `python evil_device.py KIND FOLDER` runs one like `deploy device`.

With `--worker` it is the worker of such a device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from whalefl.flower import handshake, worker
from whalefl.flower.blocks import from_block, to_block
from whalefl.flower.deploy import device
from whalefl.flower.deploy.processes import Child
from whalefl.flower.folders import DeviceFolder
from whalefl.flower.relay import Parcel


def spoilt(kind: str, reply: Parcel) -> Parcel:
    body = json.loads(reply.body)
    if body["kind"] != "Trained":
        return reply
    tensors = from_block(reply.block)
    if kind == "nan":
        tensors = {name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()}
    elif kind == "shapes":
        tensors = {name: tensor.flatten() for name, tensor in tensors.items()}
    elif kind == "size":
        tensors = {name: tensor.repeat_interleave(10, 0) for name, tensor in tensors.items()}
    elif kind == "level":
        body["level"] = 5
    return replace(reply, body=json.dumps(body), block=to_block(tensors))


def work(kind: str, folder: Path) -> None:
    honest = worker.answer
    worker.answer = lambda resident, parcel: spoilt(kind, honest(resident, parcel))
    if kind == "version":
        handshake.__version__ = "9.9.9"
    worker.main(folder)


def supervise(kind: str, folder: Path) -> None:
    def start(name: str, command: Sequence[str], *rest: object) -> Child:
        if name == "worker":
            command = [sys.executable, __file__, "--worker", kind, str(folder)]
        return Child(name, command, *rest)  # type: ignore[arg-type]

    device.Child = start  # type: ignore[misc, assignment]
    device.run_device(DeviceFolder(folder))


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        supervise(sys.argv[1], Path(sys.argv[2]))
