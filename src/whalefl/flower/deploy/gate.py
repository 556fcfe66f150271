"""The door through which devices reach the server, and the only one.

Flower's SuperLink answers its operators, its own processes and its devices on one port, and asks only devices who
they are: whoever reaches that port may start a run, that is, any code on all machines. So it listens on this machine
alone, and this gate passes on what devices say and nothing else, in bounded sizes, over TLS on both sides.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn

_DEVICES = "/v1/fleet/"
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

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLarge(Exception):
    """A request, or all of a reply's requests together, are longer than agreed."""


class Gate:
    """An ASGI app: requests of devices go to `inner`, bounded by `most_bytes` each and `reply_bytes` a reply."""

    def __init__(self, inner: str, authority: Path, most_bytes: int, reply_bytes: int) -> None:
        self.most_bytes, self.reply_bytes = most_bytes, reply_bytes
        context = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.AsyncClient(base_url=f"https://{inner}", verify=context, timeout=_TIMEOUT_S)
        self._sent: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_DEVICES):
            await _answer(send, 403, b"only devices may enter here")
            return
        try:
            body = await self._body(scope, receive)
        except TooLarge:
            await _answer(send, 413, b"too large")
            return
        kept = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        try:
            reply = await self._client.request(scope["method"], scope["path"], headers=kept, content=body)
        except httpx.HTTPError:
            await _answer(send, 503, b"the server is not there")
            return
        headers = [(name, value) for name, value in reply.headers.raw if name.lower() not in _HOP]
        await _answer(send, reply.status_code, reply.content, headers)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        parts, length = [], 0
        while True:
            event = await receive()
            parts.append(event.get("body", b""))
            length += len(parts[-1])
            if length > self.most_bytes:
                raise TooLarge
            if not event.get("more_body", False):
                break
        self._count(scope, length)
        return b"".join(parts)

    def _count(self, scope: Scope, length: int) -> None:
        """Objects that belong to one reply follow its announcement: together they are bounded too."""
        key = dict(scope["headers"]).get(_KEY, b"")
        if scope["path"].endswith("/push-messages"):
            self._sent[key] = 0
        elif scope["path"].endswith("/push-object"):
            self._sent[key] += length
            if self._sent[key] > self.reply_bytes:
                raise TooLarge


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
        self._server = uvicorn.Server(settings)
        self._thread = Thread(target=self._server.run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._server.started and self._thread.is_alive()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)
