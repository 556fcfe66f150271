"""Loading a data set: it is looked for in a few places, read once, and kept in one quick form in the user's cache."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from whalefl.cache import cache_dir
from whalefl.errors import WhaleflError
from whalefl.tasks.data import canonical
from whalefl.tasks.data.datasets import Dataset, describe
from whalefl.tasks.data.sources import CANONICAL, DAMAGE, Source, sources_in


def places(data_dir: Path | None) -> list[Path]:
    """Where data sets are looked for, in this order: `data_dir`, $WHALEFL_DATA, the user's cache."""
    if data_dir is not None and not os.path.isdir(data_dir):
        raise WhaleflError(f"data_dir is {str(data_dir)!r}, which is not there; it must be a folder with data sets")
    named = os.environ.get("WHALEFL_DATA")
    candidates = [data_dir, Path(named) if named else None, cache_dir()]
    return list(dict.fromkeys(Path(os.path.abspath(place)) for place in candidates if place is not None))


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """A data set by name, from the first place that has it."""
    describe(name)
    looked = places(data_dir)
    for place in looked:
        found = sources_in(name, place)
        if found:
            return _load_first(found)
    raise WhaleflError(
        f"data set {name!r} is not in {', '.join(map(str, looked))}; `whalefl data fetch {name}` gets it"
    )


def _load_first(found: list[Source]) -> Dataset:
    """From the first source; a damaged canonical form is passed over where it can be made again from another one."""
    first, *others = found
    if first.form != CANONICAL:
        return _through_cache(first)
    try:
        return first.read()
    except WhaleflError:
        if not others:
            raise
        return _load_first(others)


def _through_cache(source: Source) -> Dataset:
    """Read a source, or what was kept of it, if it has not changed since."""
    origin = source.fingerprint()
    kept = kept_path(source)
    with suppress(*DAMAGE):  # a cache that cannot be used is no cache
        if canonical.read_header(kept).origin == origin:
            return Source(source.name, CANONICAL, kept.parent, (kept,)).read()
    dataset = source.read()
    with suppress(OSError):  # nor need it be writable
        kept.parent.mkdir(parents=True, exist_ok=True)
        canonical.write(kept, dataset, origin)
    return dataset


def kept_path(source: Source) -> Path:
    """The cached form: `<name>.safetensors` for what lies in the cache itself, one more name for each other folder."""
    cache = Path(os.path.abspath(cache_dir()))
    if source.place == cache:
        return cache / canonical.canonical_name(source.name)
    folder = hashlib.blake2b(str(source.place.resolve()).encode(), digest_size=6).hexdigest()
    return cache / canonical.canonical_name(f"{source.name}-{folder}")
