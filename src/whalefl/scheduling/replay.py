"""Levels taken from another run: controls that keep which sizes were trained, and not why or by whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whalefl.errors import WhaleflError, require, require_one_of
from whalefl.rng import stream
from whalefl.scheduling.fisher import Window
from whalefl.scheduling.policies import Announcement, FunctionPolicy, LevelTimes, Policy
from whalefl.values import Conditions, Profile

LevelTable = tuple[tuple[int, ...], ...]
"""round x device -> level."""

ABSENT = "-"
"""Stands in a line of levels for a device that took no part in the round."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ReplaySettings:
    """What the policy `replay` hands out: the levels in `file`, one line a round and one character a device.

    `permuted` deals every round's levels out to other devices; `drawn` lets every device draw, every round, from all
    the levels of the file, so that only their histogram is kept.
    """

    file: str | None = None
    order: Literal["permuted", "drawn"] = "permuted"

    def __post_init__(self) -> None:
        require_one_of("order", self.order, ("permuted", "drawn"))


def replay_of(settings: ReplaySettings, seed: int) -> Policy:
    """The policy that hands out the levels of a file."""
    if settings.file is None:
        raise WhaleflError("replay.file is not given; the policy 'replay' needs a file of levels, one line a round")
    try:
        text = Path(settings.file).read_text(encoding="ascii")
        table = tuple(levels_of_line(line) for line in text.split())
    except (OSError, ValueError) as error:
        raise WhaleflError(
            f"replay.file is {settings.file!r}, which cannot be read; it must hold one line of levels a round"
        ) from error
    require(bool(table) and all(table), "replay.file", settings.file, "a file with at least one level in every line")
    return permuted(table, seed) if settings.order == "permuted" else drawn(table, seed)


def permuted(table: LevelTable, seed: int) -> Policy:
    """Every round's levels dealt out among the devices by chance; the last round's again when rounds run out."""

    def deal(announcement: Announcement, profile: Profile, _c: Conditions, times: LevelTimes, _w: Window) -> int:
        row = table[min(announcement.round, len(table)) - 1]
        require(profile.device < len(row), "device", profile.device, f"below {len(row)}, the devices of replay.file")
        order = stream(seed, "permuted levels", announcement.round).permutation(len(row))
        return min(row[int(order[profile.device])], len(times))

    return FunctionPolicy(deal, name="replay")


def drawn(table: LevelTable, seed: int) -> Policy:
    """Every device draws its level every round from all levels of the table."""
    levels = [level for row in table for level in row]

    def draw(announcement: Announcement, profile: Profile, _c: Conditions, times: LevelTimes, _w: Window) -> int:
        rng = stream(seed, "drawn level", profile.device, announcement.round)
        return min(levels[int(rng.integers(len(levels)))], len(times))

    return FunctionPolicy(draw, name="replay")


def line_of_levels(levels: Iterable[int | None]) -> str:
    """A round's levels as one character each."""
    return "".join(ABSENT if level is None else _DIGITS[level] for level in levels)


def levels_of_line(line: str) -> tuple[int, ...]:
    """The levels of those who took part in a round."""
    return tuple(_DIGITS.index(character) for character in line if character != ABSENT)


def write_levels(path: Path, lines: Sequence[str]) -> None:
    """A file for `replay.file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
