"""A section of a Markdown page that is written from results, between two marks; the rest of the page stays as it is."""

from __future__ import annotations

from pathlib import Path

from whalefl.errors import WhaleflError
from whalefl.runs import write_atomic


def write_section(path: Path, name: str, text: str, empty_page: str = "") -> None:
    """Refresh the section of this name, or add it to the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text(encoding="utf8") if path.exists() else empty_page
    if begin in page and end not in page:
        raise WhaleflError(f"{path} has the mark {begin!r} without {end!r}; it must have both")
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    section = f"{begin}\n{text.rstrip()}\n{end}"
    write_atomic(path, (before.rstrip() + "\n\n" + section + (after if after.strip() else "\n")).encode())
