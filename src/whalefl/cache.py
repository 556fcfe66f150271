"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$WHALEFL_CACHE, or the folder for caches that the operating system gives the user."""
    named = os.environ.get("WHALEFL_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("whalefl")
