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
from typing import Any

from whalefl.cache import cache_dir

_HERE = Path(__file__).parent
_SOURCES = sorted(str(path) for path in _HERE.glob("*.cpp"))
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
_SIMD = ["-fopenmp-simd", *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else [])]
_SHARED = ["-shared", "-fPIC"]


def command() -> list[str] | None:
    """How the compiler is called: $CXX, or c++; None if there is none, or if $CXX is empty."""
    words = shlex.split(os.environ.get("CXX", "c++"))
    return words if words and shutil.which(words[0]) else None


@cache
def kernels() -> ctypes.CDLL:
    """The kernels, compiled if they are not in the cache or not whole; OSError or subprocess.CalledProcessError if that
    fails."""
    compiler = command()
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler")
    kept = cache_dir() / f"kernels-{_digest(compiler)}.so"
    with suppress(OSError):
        return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="whalefl-") as folder:
        made = Path(folder) / kept.name
        _run([*compiler, *_FLAGS, *_SIMD, *_SHARED, "-o", str(made), *_SOURCES])
        with suppress(OSError):  # a cache that cannot be written is no cache; nor may all folders hold what is run
            _keep(made, kept)
            return ctypes.CDLL(str(kept))
        return ctypes.CDLL(str(made))


@cache
def operation(name: str, arguments: tuple[type, ...]) -> Any:
    """One of the kernels, which takes these arguments."""
    found = getattr(kernels(), name)
    found.restype, found.argtypes = None, arguments
    return found


def _digest(compiler: list[str]) -> str:
    """Of all that decides what comes out: the sources, the flags, the compiler, and the processor it sees."""
    sees = _run([*compiler, *_FLAGS, *_SIMD, "-E", "-dM", "-x", "c++", os.devnull])
    sources = [path.read_bytes() for path in sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.h")])]
    parts = [*sources, " ".join([*compiler, *_FLAGS, *_SIMD]).encode(), sees]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(words: list[str]) -> bytes:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout


def _keep(made: Path, kept: Path) -> None:
    """Copy it into the cache, where several processes may look for it at once and must find it whole or not at all."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        copy = Path(folder) / kept.name
        shutil.copy(made, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(copy, kept)
