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
_SOURCES = sorted(_HERE.glob("*.cpp"))
_FLAGS = [
    "-fno-fast-math",
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
]
_SIMD = ["-fopenmp-simd", *(["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else [])]
_LIBRARY = ["-shared", "-fPIC"]
_SEAL = hashlib.sha256().digest_size  # bytes at the end of what is kept: the digest of all before them


def command() -> list[str] | None:
    """How the compiler is called: $CXX, or c++; None if there is none, or if $CXX is empty."""
    words = shlex.split(os.environ.get("CXX", "c++"))
    return words if words and shutil.which(words[0]) else None


def kernels() -> ctypes.CDLL:
    """The kernels; OSError if they cannot be had."""
    found = tried()
    if isinstance(found, OSError):
        raise found
    return found


@cache
def tried() -> ctypes.CDLL | OSError:
    """The kernels, or why there are none, which is found out once for all that ask."""
    try:
        return _compiled()
    except OSError as error:
        return error


def _compiled() -> ctypes.CDLL:
    """From the cache, or if they are not there, or not whole, from the compiler."""
    compiler = command()
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler")
    kept = cache_dir() / f"kernels-{_digest(compiler)}.so"
    with suppress(OSError):
        if _whole(kept):
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="whalefl-") as folder:
        made = Path(folder) / kept.name
        _run([*compiler, *_FLAGS, *_SIMD, *_LIBRARY, "-o", str(made), *map(str, _SOURCES)])
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


def wide_vectors() -> bool:
    """Whether the processor computes with vectors as wide as the kernels': with narrower ones those that keep sums in
    its registers are slower than torch's own."""
    return bool(kernels().has_wide_vectors())


def _digest(compiler: list[str]) -> str:
    """Of all that decides what comes out: the sources, the flags, the compiler, and the processor it sees."""
    sees = _run([*compiler, *_FLAGS, *_SIMD, "-E", "-dM", "-x", "c++", os.devnull])
    sources = [path.read_bytes() for path in [*_SOURCES, *sorted(_HERE.glob("*.h"))]]
    parts = [*sources, " ".join([*compiler, *_FLAGS, *_SIMD, *_LIBRARY]).encode(), sees]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(words: list[str]) -> bytes:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()[:3]
        raise OSError(f"{words[0]} failed with exit code {done.returncode}: {' '.join(said)}")
    return done.stdout


def _keep(made: Path, kept: Path) -> None:
    """Copy it into the cache with its seal, where several processes may look for it at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        copy, library = Path(folder) / kept.name, made.read_bytes()
        copy.write_bytes(library + hashlib.sha256(library).digest())
        os.replace(copy, kept)


def _whole(kept: Path) -> bool:
    """Whether it is all there: a library that is not would end the process as soon as it is loaded."""
    sealed = kept.read_bytes()
    return hashlib.sha256(sealed[:-_SEAL]).digest() == sealed[-_SEAL:]
