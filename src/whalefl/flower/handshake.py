"""Both sides must speak of the same thing: the same package, the same agreed file, the same model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from whalefl import __version__
from whalefl.flower.messages import Identity
from whalefl.flower.refusal import Refused
from whalefl.flower.terms import Deployment
from whalefl.subnet.axes import Axes


def identity_of(deployment: Deployment, axes: Axes) -> Identity:
    return Identity(__version__, deployment.fingerprint, axes_fingerprint(axes))


def axes_fingerprint(axes: Axes) -> str:
    """Equal for models whose parameters have the same names, dimensions and axes."""
    parameters = {
        name: [[type(part).__name__, asdict(part)] for dim in dims for part in dim]
        for name, dims in axes.parameters.items()
    }
    text = json.dumps([dict(axes.sizes), parameters, dict(axes.labels)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_identity(mine: Identity, theirs: Identity, them: str) -> None:
    """Raise with one sentence that says what differs."""
    if mine.version != theirs.version:
        raise Refused(f"{them} has whalefl {theirs.version[:30]}; it must be {mine.version}")
    if mine.terms != theirs.terms:
        raise Refused(f"{them} has a federation.toml with the mark {theirs.terms[:30]}; it must be {mine.terms}")
    if mine.axes != theirs.axes:
        raise Refused(f"{them} has a model whose axes have the mark {theirs.axes[:30]}; it must be {mine.axes}")
