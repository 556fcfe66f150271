"""The weather over real devices: links and quotas follow the simulator's sky while a federation runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whalefl.fleet.devices import Device
from whalefl.fleet.weather import Sky
from whalefl.flower.deploy.device import WORKER
from whalefl.flower.testbed.namespaces import Place, shape
from whalefl.flower.testbed.quotas import Quota
from whalefl.values import Conditions


@dataclass(frozen=True)
class Site:
    """A device of the testbed: who it is, where its network is, its quotas, and its cores without load.

    `quota` holds all that the device runs but its worker, which has one of its own: background load slows down
    computing, and nothing else, in the simulator.
    """

    device: Device
    place: Place
    quota: Quota
    worker_quota: Quota
    cores: float

    def part_workers(self) -> None:
        """Move workers that were started since the last time into their own quota."""
        for process in self.quota.processes():
            if _is_worker(process):
                self.worker_quota.take(process)


def _is_worker(process: int) -> bool:
    try:
        return WORKER in Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended
        return False


class Weathering:
    """Applies the sky to all sites, at the federation's own time.

    That time stands at 0 until the first round begins, and is set to what the server says whenever a round has ended:
    scoring between rounds takes none of it.
    """

    def __init__(self, sky: Sky, sites: Sequence[Site], status: Callable[[], dict[str, Any] | None]) -> None:
        self.sky, self.sites, self._status = sky, sites, status
        self._known: tuple[int, float] = (-1, 0.0)
        self._since: float | None = None
        self._applied: dict[int, tuple[float, float]] = {}

    def now_s(self) -> float:
        status = self._status()
        if status is None or len(status["devices"]) < len(self.sites):
            return 0.0
        known = (int(status["round"]), float(status["time_s"]))
        if known != self._known or self._since is None:
            self._known, self._since = known, time.monotonic()
        return known[1] + time.monotonic() - self._since

    def apply(self) -> None:
        """Set what has changed."""
        now_s = self.now_s()
        for site in self.sites:
            site.part_workers()
            conditions = self.sky.conditions(site.device, now_s)
            wanted = (conditions.rate_mbps, site.cores / conditions.slowdown)
            if self._applied.get(site.device.index) != wanted:
                self._set(site, conditions)
                self._applied[site.device.index] = wanted

    def _set(self, site: Site, conditions: Conditions) -> None:
        shape(site.place, conditions.rate_mbps)
        site.worker_quota.set(site.cores / conditions.slowdown)
