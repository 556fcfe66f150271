"""What server and devices say to each other: every field there is. docs/privacy.md says what each reveals."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from whalefl.flower.refusal import Refused
from whalefl.scheduling.policies import Announcement

LONGEST_BODY = 1_000_000
"""Bytes of the longest body that is read; only a list of owned words comes near."""


@dataclass(frozen=True)
class Identity:
    """What both sides must have in common: the package's version, the agreed file, the model's axes."""

    version: str
    terms: str
    axes: str


@dataclass(frozen=True)
class Wish:
    """A device's choice for the next round.

    `unit_s` is the time it expects for the smallest slice; `above` is the one bit by which the threshold is found:
    whether its utility exceeds the value on trial (None: it has no utility yet, or is not asked).
    """

    level: int
    unit_s: float
    above: bool | None


@dataclass(frozen=True)
class Ask:
    """The server to a device: choose a level for the announced round. `trial` is the threshold on trial."""

    announcement: Announcement
    trial: float | None


@dataclass(frozen=True)
class Hello:
    """The first message to a device; it comes with noise to measure the link by."""

    identity: Identity
    ask: Ask


@dataclass(frozen=True)
class Welcome:
    """A device's answer. `owned` are the labels it has, where label rows are averaged over their owners only."""

    identity: Identity
    device: int
    examples: int
    owned: tuple[int, ...] | None
    wish: Wish


@dataclass(frozen=True)
class Train:
    """Train the slice that comes along, of this level, as round `round`; then choose for the round in `ask`.

    `exchange_s` is how long the last exchange with this device took, as the server saw it.
    """

    round: int
    level: int
    ask: Ask
    exchange_s: float | None


@dataclass(frozen=True)
class Trained:
    """What comes with a trained slice: the mean training loss, the computing time, the wish for the next round."""

    round: int
    level: int
    loss: float
    computing_s: float
    wish: Wish


@dataclass(frozen=True)
class Gather:
    """Run the whole model over some samples and return the sums its batch norms need.

    In pass 1 the model comes along, in later ones the statistics of the pass before.
    """

    round: int
    number: int


@dataclass(frozen=True)
class Gathered:
    """The sums come along as tensors; `counts` are how many values each was taken over.

    A device that is not `able` to run the whole model now sends none.
    """

    round: int
    able: bool
    counts: dict[str, int]


@dataclass(frozen=True)
class Judge:
    """Score the model of the last `Gather` with the statistics that come along, on the device's own test data."""

    round: int


@dataclass(frozen=True)
class Judged:
    """How many predictions a device made on its test data, how many were right, and the sum of their losses."""

    round: int
    predictions: int
    right: int
    loss: float


@dataclass(frozen=True)
class Refusal:
    """The device will not do it, and says why."""

    reason: str


def to_json(message: Any) -> str:
    return json.dumps({"kind": type(message).__name__, **asdict(message)}, separators=(",", ":"), allow_nan=False)


T = TypeVar("T")


def from_json(text: str, kind: type[T]) -> T:
    """Read a message of this kind; raises `Refused` for anything else."""
    if len(text) > LONGEST_BODY:
        raise Refused(f"a message body of {len(text)} characters; at most {LONGEST_BODY} are read")
    try:
        values = json.loads(text)
        named = values.pop("kind")
        if named == Refusal.__name__ and kind is not Refusal:
            raise Refused(TypeAdapter(Refusal).validate_python(values).reason[:500])
        if named != kind.__name__:
            raise Refused(f"a message of kind {str(named)[:50]!r}; {kind.__name__!r} was expected")
        adapter = TypeAdapter(kind)
        return adapter.validate_json(json.dumps(values, allow_nan=False), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(f"a {kind.__name__} whose {place or 'content'} is wrong: {first['msg']}") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Refused(f"a message body that cannot be read: {type(error).__name__}") from None
