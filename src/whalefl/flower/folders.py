"""The folders that `whalefl deploy init` makes: one for the server, one for each device, and what lies in them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import tomli_w
from pydantic import TypeAdapter, ValidationError

from whalefl.errors import WhaleflError, require
from whalefl.flower.mistakes import first_mistake

TERMS, DEVICE, SERVER = "federation.toml", "device.toml", "server.toml"
_Settings = TypeVar("_Settings", "DeviceSettings", "ServerSettings")


def _read(kind: type[_Settings], path: Path) -> _Settings:
    """The settings in a file; raises one sentence for a folder or file that is not as `deploy init` makes it."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf8"))
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True, extra="forbid")
    except OSError as error:
        raise WhaleflError(
            f"folder is {str(path.parent)!r}, which holds no {path.name}; "
            "it must be one that `whalefl deploy init` made"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise WhaleflError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise WhaleflError(f"in {path} {first_mistake(error, kind)}") from error


@dataclass(frozen=True)
class DeviceSettings:
    """What differs from device to device: its number, where the server is, a local port, and its threads.

    `chunk_kb` is that of the agreed terms, so that the supervisor need not read them.
    """

    device: int
    server: str
    chunk_kb: int
    port: int = 9094
    threads: int = 1

    def __post_init__(self) -> None:
        require(self.device >= 0, "device", self.device, "at least 0")
        require(":" in self.server, "server", self.server, "HOST:PORT")
        require(1 <= self.port <= 65535, "port", self.port, "between 1 and 65535")
        require(self.threads >= 1, "threads", self.threads, "at least 1")


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens for devices, and the port on this machine alone where Flower's SuperLink does.

    `chunk_kb` is that of the agreed terms and `model_kb` the size of the whole model: what the gate lets pass.
    """

    chunk_kb: int
    model_kb: int
    host: str = "0.0.0.0"
    port: int = 9443
    inner_port: int = 9444

    def __post_init__(self) -> None:
        for key in ("port", "inner_port"):
            value = getattr(self, key)
            require(1 <= value <= 65535, key, value, "between 1 and 65535")
        require(self.port != self.inner_port, "inner_port", self.inner_port, "another one than port")


@dataclass(frozen=True)
class DeviceFolder:
    """What a device needs, and keeps."""

    path: Path

    @property
    def terms(self) -> Path:
        return self.path / TERMS

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def log(self) -> Path:
        return self.path / "device.log"

    def settings(self) -> DeviceSettings:
        return _read(DeviceSettings, self.path / DEVICE)

    def write_settings(self, settings: DeviceSettings) -> None:
        (self.path / DEVICE).write_text(tomli_w.dumps(asdict(settings)), encoding="utf8")


@dataclass(frozen=True)
class ServerFolder:
    """What the server needs, and keeps."""

    path: Path

    def settings(self) -> ServerSettings:
        return _read(ServerSettings, self.path / SERVER)

    def write_settings(self, settings: ServerSettings) -> None:
        (self.path / SERVER).write_text(tomli_w.dumps(asdict(settings)), encoding="utf8")

    @property
    def terms(self) -> Path:
        return self.path / TERMS

    @property
    def authority(self) -> Path:
        return self.path / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        return self.path / "server.key"

    @property
    def devices(self) -> Path:
        """The public keys of the devices: device-0.pub and so on."""
        return self.path / "devices"

    @property
    def database(self) -> Path:
        return self.path / "superlink.db"

    @property
    def home(self) -> Path:
        """Flower's own settings and caches."""
        return self.path / "flower"

    @property
    def app(self) -> Path:
        return self.path / "app"

    @property
    def run(self) -> Path:
        """The run folder: config, metrics, model, checkpoint, events."""
        return self.path / "run"

    @property
    def log(self) -> Path:
        return self.path / "server.log"
