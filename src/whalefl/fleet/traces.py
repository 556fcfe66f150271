"""Replay of measured bandwidth: a CSV file `time_s,mbps` becomes a link whose rate changes while it sends."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whalefl.errors import WhaleflError


@dataclass(frozen=True, eq=False)
class Trace:
    """A rate that is constant between samples and starts again when the trace ends.

    The last sample lasts as long as the median step. Zeros are outages and legal; a trace of zeros alone is not.
    """

    name: str
    time_s: NDArray[np.float64]
    mbps: NDArray[np.float64]

    def __post_init__(self) -> None:
        where = f"trace {self.name}"
        if len(self.time_s) == 0 or len(self.time_s) != len(self.mbps):
            raise WhaleflError(f"{where} has {len(self.time_s)} samples; it must have at least one")
        if not (np.isfinite(self.time_s).all() and np.isfinite(self.mbps).all()):
            raise WhaleflError(f"{where} holds a value that is not a finite number; all of them must be")
        if (np.diff(self.time_s) <= 0).any():
            row = int(np.argmax(np.diff(self.time_s) <= 0)) + 1
            raise WhaleflError(f"{where} has time_s {self.time_s[row]:g} after {self.time_s[row - 1]:g}; it must grow")
        if (self.mbps < 0).any():
            raise WhaleflError(f"{where} has the rate {self.mbps.min():g} Mbit/s; it must be at least 0")
        if not (self.mbps > 0).any():
            raise WhaleflError(f"{where} is zero throughout; it must have a rate above 0 somewhere")

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        path = Path(path)
        try:
            with path.open(newline="", encoding="utf8") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise WhaleflError(f"trace is {str(path)!r}, which cannot be read; it must be a CSV file") from error
        try:
            time_s = np.array([float(row["time_s"]) for row in rows])
            mbps = np.array([float(row["mbps"]) for row in rows])
        except (KeyError, TypeError, ValueError) as error:
            raise WhaleflError(
                f"trace is {str(path)!r}, which lacks numbers under time_s,mbps; it must have these two columns"
            ) from error
        return cls(path.stem, time_s, mbps)

    @cached_property
    def _steps(self) -> NDArray[np.float64]:
        gaps = np.diff(self.time_s)
        return np.append(gaps, np.median(gaps) if len(gaps) else 1.0)

    @cached_property
    def _sent(self) -> NDArray[np.float64]:
        """Megabits sent from the start of the trace up to the start of each step, and up to its end."""
        return np.concatenate([[0.0], np.cumsum(self.mbps * self._steps)])

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(self._steps)])

    @property
    def duration_s(self) -> float:
        return float(self._edges[-1])

    @property
    def mean_mbps(self) -> float:
        return float(self._sent[-1] / self._edges[-1])

    def rate(self, at_s: float) -> float:
        """The rate in Mbit/s at a moment; the trace wraps around."""
        step = int(np.searchsorted(self._edges, at_s % self.duration_s, side="right")) - 1
        return float(self.mbps[min(step, len(self.mbps) - 1)])

    def transmission_seconds(self, bits: float, start_s: float) -> float:
        """The time from `start_s` until the integral of the rate reaches this many bits."""
        if bits <= 0:
            return 0.0
        phase = start_s % self.duration_s
        sent_before = float(np.interp(phase, self._edges, self._sent))
        laps, rest = divmod(sent_before + bits / 1e6, float(self._sent[-1]))
        if rest == 0:  # done exactly when a lap's last bit is sent, not when the next lap begins
            laps, rest = laps - 1, float(self._sent[-1])
        # The first moment at which `rest` megabits are sent: outages make the integral flat, so look from the left.
        step = int(np.searchsorted(self._sent, rest, side="left"))
        end = self._edges[step - 1] + (rest - self._sent[step - 1]) / self.mbps[step - 1]
        return float(laps * self.duration_s + end - phase)
