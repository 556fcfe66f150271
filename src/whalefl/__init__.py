"""whalefl: federated learning in which every device chooses how wide a slice of the model it trains."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whalefl.errors import WhaleflError
    from whalefl.federation.methods import METHODS, Method
    from whalefl.federation.settings import Settings
    from whalefl.federation.simulation import simulate
    from whalefl.fleet.devices import DeviceGroup, Fleet
    from whalefl.fleet.weather import Weather
    from whalefl.rng import Seeds
    from whalefl.subnet.axes import Axes, Segment, Whole
    from whalefl.tasks.task import Task

__version__ = "0.1.0"

# Names are imported when they are first used: `whalefl --help` needs no torch.
_HOME = {
    "WhaleflError": "whalefl.errors",
    "Seeds": "whalefl.rng",
    "Axes": "whalefl.subnet.axes",
    "Segment": "whalefl.subnet.axes",
    "Whole": "whalefl.subnet.axes",
    "DeviceGroup": "whalefl.fleet.devices",
    "Fleet": "whalefl.fleet.devices",
    "Weather": "whalefl.fleet.weather",
    "Task": "whalefl.tasks.task",
    "METHODS": "whalefl.federation.methods",
    "Method": "whalefl.federation.methods",
    "Settings": "whalefl.federation.simulation",
    "simulate": "whalefl.federation.simulation",
}

__all__ = [
    "METHODS",
    "Axes",
    "DeviceGroup",
    "Fleet",
    "Method",
    "Seeds",
    "Segment",
    "Settings",
    "Task",
    "Weather",
    "WhaleflError",
    "Whole",
    "__version__",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'whalefl' has no attribute {name!r}")
