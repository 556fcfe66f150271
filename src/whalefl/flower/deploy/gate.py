"""The door through which devices reach the server, and the only one.

Flower's SuperLink answers its operators, its own processes and its devices on one port, and asks only devices who
they are: whoever reaches that port may start a run, that is, any code on all machines. So it listens on this machine
alone, and this gate passes on what devices say and nothing else, in bounded sizes, over TLS on both sides.
"""

from __future__ import annotations

import re
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn

from whalefl.errors import WhaleflError

_DEVICES = re.compile(r"/v1/fleet/[a-z0-9-]+")
"""All that devices ask for; nothing in it can lead elsewhere, as dots would."""
_KEY = b"flwr-public-key"
_HOP = {
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"host",
    b"content-length",
    b"upgrade",
    b"accept-encoding",
    b"content-encoding",
}
_TIMEOUT_S = 120.0
_REFILL_S = 5.0

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLarge(Exception):
    """A request, or what a device has sent lately, is more than agreed."""


class Left(Exception):
    """The device hung up before its request was complete."""


class Gate:
    """An ASGI app: requests of devices go to `inner`, bounded by `most_bytes` each.

    The objects of a device are bounded together as well: by `reply_bytes` at once, and as much again every few seconds.
    """

    def __init__(self, inner: str, authority: Path, most_bytes: int, reply_bytes: int) -> None:
        self.most_bytes, self.reply_bytes = most_bytes, reply_bytes
        context = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.AsyncClient(base_url=f"https://{inner}", verify=context, timeout=_TIMEOUT_S)
        self._spent: dict[bytes, tuple[float, float]] = {}  # by key: bytes, and when
        self._passing: Counter[bytes] = Counter()  # by key: bytes that the server has not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _DEVICES.fullmatch(scope["path"]):
            await _answer(send, 403, b"only devices may enter here")
            return
        key = next((value for name, value in scope["headers"] if name == _KEY), b"")
        pushes = scope["path"].endswith("/push-object")
        try:
            body = await self._body(receive)
            if pushes and self._owed(key) + self._passing[key] + len(body) > self.reply_bytes:
                raise TooLarge
        except TooLarge:
            await _answer(send, 413, b"too large")
            return
        except Left:
            return
        kept = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        self._passing[key] += len(body)
        try:
            reply = await self._client.request(scope["method"], scope["path"], headers=kept, content=body)
        except httpx.HTTPError:
            await _answer(send, 503, b"the server is not there")
            return
        finally:
            self._passing[key] -= len(body)
            if not self._passing[key]:
                del self._passing[key]
        if pushes and reply.is_success:  # of a device that the server knows, or it would have been refused
            self._spent[key] = (self._owed(key) + len(body), time.monotonic())
        headers = [(name, value) for name, value in reply.headers.raw if name.lower() not in _HOP]
        await _answer(send, reply.status_code, reply.content, headers)

    async def _body(self, receive: Receive) -> bytes:
        parts, length = [], 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Left
            parts.append(event.get("body", b""))
            length += len(parts[-1])
            if length > self.most_bytes:
                raise TooLarge
            if not event.get("more_body", False):
                return b"".join(parts)

    def _owed(self, key: bytes) -> float:
        """What is left of the bytes that a device has sent, which drain away."""
        spent, when = self._spent.get(key, (0.0, 0.0))
        return max(0.0, spent - (time.monotonic() - when) * self.reply_bytes / _REFILL_S)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    fields = [*(headers or []), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


class GateServer:
    """The gate on a public address, in a thread of its own."""

    def __init__(self, gate: Gate, host: str, port: int, certificate: Path, key: Path) -> None:
        settings = uvicorn.Config(
            gate,
            host=host,
            port=port,
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
            lifespan="off",
            log_level="warning",
            access_log=False,
        )
        self._server, self._place = uvicorn.Server(settings), f"{host}:{port}"
        self._thread = Thread(target=self._server.run, daemon=True)

    def start(self, patience_s: float) -> None:
        """Open the gate; raises where it cannot be opened."""
        self._thread.start()
        until = time.monotonic() + patience_s
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise WhaleflError(f"port is {self._place.rpartition(':')[2]}; it must be free on {self._place}")
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        return self._server.started and self._thread.is_alive()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)
