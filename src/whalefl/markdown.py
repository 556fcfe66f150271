"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def grid(rows: Iterable[Iterable[str]]) -> str:
    """A table; the first row is its header."""
    lines = [[text.replace("|", "\\|") for text in row] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
