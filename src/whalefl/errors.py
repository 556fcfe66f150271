"""The one-sentence errors: what is wrong, the value that was given, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class WhaleflError(ValueError):
    """A mistake in what the user gave. The command line prints it as one line and exits with 2."""


class Diverged(WhaleflError):
    """Training that left the range of numbers: the settings are to blame, and the run is a result all the same."""


def require(ok: bool, key: str, value: object, wanted: str) -> None:
    """Raise «key is value; it must be wanted» unless `ok`."""
    if not ok:
        raise WhaleflError(f"{key} is {value!r}; it must be {wanted}")


def one_of(value: str, known: Iterable[str]) -> str:
    """What would have been right instead of a value: the known names, and the one that was probably meant."""
    names = list(known)
    near = get_close_matches(value, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"one of {', '.join(names)}{hint}"


def require_one_of(key: str, value: str, known: Iterable[str]) -> None:
    """Raise an error that lists the known names unless `value` is among them."""
    names = list(known)
    if value not in names:
        raise WhaleflError(f"{key} is {value!r}; it must be {one_of(value, names)}")


def require_finite_number(key: str, value: Any, *, above: float | None = None, least: float | None = None) -> None:
    """Raise unless `value` is a finite number, strictly above `above` and at least `least`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    finite = number and float("-inf") < value < float("inf")
    wanted = "a finite number"
    if above is not None:
        wanted += f" above {above}"
    if least is not None:
        wanted += f" of at least {least}"
    ok = finite and (above is None or value > above) and (least is None or value >= least)
    require(ok, key, value, wanted)
