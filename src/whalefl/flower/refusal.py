"""The one error of an exchange."""

from __future__ import annotations


class Refused(Exception):
    """What came from the other side is not what was agreed; the message says why, in one sentence."""
