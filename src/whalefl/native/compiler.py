"""The kernels, compiled for the processor they run on: once on a machine, by its own compiler."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from whalefl.cache import cache_dir

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
_SIMD = ["-fopenmp-simd", *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else [])]
_SHARED = ["-shared", "-fPIC"]


def command() -> list[str] | None:
    """How the compiler is called: $CXX, or c++; None if there is none, or if $CXX is empty."""
    words = shlex.split(os.environ.get("CXX", "c++"))
    return words if words and shutil.which(words[0]) else None


@cache
def kernels() -> ctypes.CDLL:
    """The kernels, compiled if they are not in the cache; subprocess.CalledProcessError if they cannot be."""
    compiler = command()
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler")
    kept = cache_dir() / f"kernels-{_digest(compiler)}.so"
    if kept.is_file():
        return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="whalefl-") as folder:
        made = Path(folder) / kept.name
        _run([*compiler, *_FLAGS, *_SIMD, *_SHARED, "-o", str(made), str(_SOURCE)])
        with suppress(OSError):  # a cache that cannot be written is no cache
            _keep(made, kept)
        return ctypes.CDLL(str(made))


def _digest(compiler: list[str]) -> str:
    """Of all that decides what comes out: the source, the flags, the compiler, and the processor it sees."""
    sees = _run([*compiler, *_FLAGS, *_SIMD, "-E", "-dM", "-x", "c++", os.devnull])
    parts = [_SOURCE.read_bytes(), " ".join([*compiler, *_FLAGS, *_SIMD]).encode(), sees]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(words: list[str]) -> bytes:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout


def _keep(made: Path, kept: Path) -> None:
    """Copy it into the cache, where several processes may look for it at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        copy = shutil.copy(made, folder)
        os.replace(copy, kept)
