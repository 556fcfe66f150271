"""Network namespaces, one for each device, on links whose rate can be set: all gone when the block ends.

A bridge on this machine stands for the server's network. Every device lives in a namespace of its own and reaches the
bridge through a pair of virtual interfaces, both ends shaped by a token bucket, so that up and down are limited alike.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whalefl.errors import WhaleflError

_BURST, _QUEUE = "32kb", "400ms"


@dataclass(frozen=True)
class Place:
    """A device's namespace, its two interfaces, and the command that enters it."""

    namespace: str
    inner: str
    outer: str

    @property
    def enter(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)


@dataclass(frozen=True)
class Ground:
    """The server's address, and the devices' places."""

    address: str
    places: tuple[Place, ...]


def why_not() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for name in ("ip", "tc"):
        if shutil.which(name) is None:
            return f"network namespaces need the command {name} (package iproute2)"
    probe = f"wfl{os.getpid()}"
    try:
        _do("ip", "netns", "add", probe)
        _do("ip", "netns", "del", probe)
    except WhaleflError as error:
        return f"network namespaces are not allowed here: {error}"
    return None


@contextmanager
def ground(devices: int) -> Iterator[Ground]:
    """A bridge and so many places; every one of them is taken away again, whatever happens in the block.

    What a process left that was killed outright is taken away by the next one.
    """
    mark = os.getpid()
    subnet, bridge = f"10.213.{mark % 250}", f"wfl{mark}b"
    _clear_leftovers()
    places = tuple(
        Place(f"wfl{mark}-{index}", inner=f"wfl{mark}i{index}", outer=f"wfl{mark}o{index}") for index in range(devices)
    )
    try:
        _do("ip", "link", "add", bridge, "type", "bridge")
        _do("ip", "addr", "add", f"{subnet}.1/24", "dev", bridge)
        _do("ip", "link", "set", bridge, "up")
        for index, place in enumerate(places):
            _build(place, bridge, f"{subnet}.{index + 10}/24")
        yield Ground(f"{subnet}.1", places)
    finally:
        _tear_down(places, bridge)


def _clear_leftovers() -> None:
    """Namespaces and bridges carry the id of the process that made them."""
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout
    for namespace, owner in re.findall(r"^(wfl(\d+)-\d+)\b", names, flags=re.M):
        if not Path(f"/proc/{owner}").exists():
            _try("ip", "netns", "del", namespace)  # its end of each link goes with it, and so does the other
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=False).stdout
    for bridge, owner in re.findall(r"\b(wfl(\d+)b):", links):
        if not Path(f"/proc/{owner}").exists():
            _try("ip", "link", "del", bridge)


def _build(place: Place, bridge: str, address: str) -> None:
    _do("ip", "netns", "add", place.namespace)
    _do("ip", "link", "add", place.outer, "type", "veth", "peer", "name", place.inner, "netns", place.namespace)
    _do("ip", "link", "set", place.outer, "master", bridge, "up")
    for command in (
        ("ip", "addr", "add", address, "dev", place.inner),
        ("ip", "link", "set", place.inner, "up"),
        ("ip", "link", "set", "lo", "up"),
    ):
        _do(*place.enter, *command)


def _tear_down(places: Sequence[Place], bridge: str) -> None:
    """Take away what is there; what is not there was not built."""
    for place in places:
        _try("ip", "link", "del", place.outer)
        _try("ip", "netns", "del", place.namespace)
    _try("ip", "link", "del", bridge)


def shape(place: Place, mbps: float) -> None:
    """Let a device's link carry this many megabits a second, each way."""
    rate = ("root", "tbf", "rate", f"{round(mbps * 1e6)}bit", "burst", _BURST, "latency", _QUEUE)
    _do("tc", "qdisc", "replace", "dev", place.outer, *rate)
    _do(*place.enter, "tc", "qdisc", "replace", "dev", place.inner, *rate)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WhaleflError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())}")


def _try(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
