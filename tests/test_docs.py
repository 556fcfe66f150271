"""The documentation against the code it speaks of."""

from __future__ import annotations

import re
from pathlib import Path

from whalefl.config import Experiment, to_toml

ROOT = Path(__file__).parent.parent


def test_the_page_of_settings_shows_every_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf8")
    assert to_toml(Experiment()).strip() in page, "run: python benchmarks/configuration_page.py"


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readmes_code_runs(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf8"), flags=re.S)
    assert len(snippets) == 2
    for snippet in snippets:
        # One round is enough to see that it works.
        exec(compile(snippet.replace("    print(", "    break\n    print("), "README", "exec"), {})
