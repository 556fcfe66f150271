"""The Flower app itself: three small files around this package. `apps/flower` in the repository is what this writes."""

from __future__ import annotations

from pathlib import Path

from whalefl import __version__

_PROJECT = f'''# Written by whalefl.flower.deploy.app_folder; the code is in the package whalefl.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "whalefl-app"
version = "{__version__}"
description = "WHALE-FL as a Flower app: every device chooses how wide a slice of the model it trains"
license = "Apache-2.0"
dependencies = ["whalefl[flower]=={__version__}"]

[tool.hatch.build.targets.wheel]
packages = ["whalefl_app"]

[tool.flwr.app]
publisher = "whalefl"

[tool.flwr.app.components]
serverapp = "whalefl_app.server:app"
clientapp = "whalefl_app.client:app"

[tool.flwr.app.config]
folder = "."
'''

_FILES = {
    "pyproject.toml": _PROJECT,
    "whalefl_app/__init__.py": '"""The two halves of a federation as Flower loads them."""\n',
    "whalefl_app/server.py": '''"""The server half."""

from whalefl.flower.server_app import make_app

app = make_app()
''',
    "whalefl_app/client.py": '''"""The device half."""

from whalefl.flower.client_app import make_app

app = make_app()
''',
}


def write_app(folder: Path) -> None:
    """Write the app into a folder, over what an older version may have left there."""
    for name, content in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf8")
