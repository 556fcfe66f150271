"""What is wrong with a table that a person may have written, in one sentence."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from whalefl.errors import one_of


def first_mistake(error: ValidationError, kind: type[Any], table: str = "") -> str:
    """The first thing that keeps values from being a dataclass of this kind; `table` is what holds them."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    key = f"{table}.{name}" if table else name
    match first["type"]:
        case "value_error":
            said = str(first["ctx"]["error"])
            return f"{table}.{said}" if table else said
        case "missing":
            return f"{key} is missing; it must be given"
        case "unexpected_keyword_argument":
            return f"{key} is not a known key; it must be {one_of(name, kind.__dataclass_fields__)}"
    return f"{key} is {first['input']!r}; it must be {first['msg'].removeprefix('Input should be ')}"
