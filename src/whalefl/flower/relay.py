"""The local socket between the short-lived client app and the resident worker: one request, one answer."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from whalefl.errors import WhaleflError

SOCKET = "worker.sock"
_LONGEST_PATH = 100  # bytes that fit into a socket's address everywhere
_LONGEST = 2**31


@dataclass(frozen=True)
class Parcel:
    """What crosses the socket: a message's id, its body and its block of bytes."""

    message: str
    body: str
    block: bytes


def socket_path(folder: Path) -> Path:
    path = folder.resolve() / SOCKET
    if len(str(path).encode()) > _LONGEST_PATH:
        raise WhaleflError(f"folder is {str(folder)!r}, which is too long for a socket; it must be a shorter path")
    return path


def send(connection: socket.socket, parcel: Parcel) -> None:
    head = json.dumps({"message": parcel.message, "body": parcel.body, "length": len(parcel.block)}).encode()
    connection.sendall(len(head).to_bytes(8, "big") + head + parcel.block)


def receive(connection: socket.socket) -> Parcel:
    length = int.from_bytes(_exactly(connection, 8), "big")
    head = json.loads(_exactly(connection, length))
    return Parcel(str(head["message"]), str(head["body"]), _exactly(connection, int(head["length"])))


def _exactly(connection: socket.socket, length: int) -> bytes:
    if not 0 <= length < _LONGEST:
        raise ConnectionError(f"{length} bytes announced")
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 2**20))
        if not part:
            raise ConnectionError("the other side hung up")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def ask(path: Path, parcel: Parcel, patience_s: float) -> Parcel:
    """Send a parcel to the worker and wait for its answer; a worker that is not there yet is waited for."""
    until = time.monotonic() + patience_s
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
                continue
            send(connection, parcel)
            return receive(connection)
