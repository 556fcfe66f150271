"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

_LEAST_WIDTH = 120


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Never narrower than its numbers: a shortened table cannot be read, a long line can."""
    table = Table(*[Column(name, no_wrap=True) for name in names], box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    Console(width=max(Console().width, _LEAST_WIDTH)).print(table)
