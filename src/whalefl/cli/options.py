"""What the commands share: options into experiments, and the line that repeats a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from whalefl.config import Experiment, Values, assignments, compose, preset, read_toml
from whalefl.errors import WhaleflError

DEFAULT_TASK = "digits"


def experiment_of(
    task: str | None, config: Path | None, pairs: Sequence[str], options: Values, swept: Sequence[str] = ()
) -> Experiment:
    """The experiment that a command describes: task preset, then file, then options, then --set, then --sweep.

    A file that names its task stands for itself, so that the config.toml of a run repeats that run exactly; one that
    does not lies over the preset of the task.
    """
    file = _config(config) if config is not None else {}
    if "task" in file and task in (None, file["task"]):
        layers = [file]
    else:
        layers = [preset(task or DEFAULT_TASK), file, {"task": task or DEFAULT_TASK}]
    layers.append({key: value for key, value in options.items() if value is not None})
    layers.append(assignments(pairs, "--set"))
    layers.append(assignments(swept, "--sweep"))
    return compose(layers)


def _config(config: Path) -> Values:
    """A file, or else a preset by name."""
    named = {} if config.exists() else preset(str(config))
    return named or read_toml(config)


def words(option: str, text: str) -> list[str]:
    """A comma-separated list without repeats or gaps."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise WhaleflError(f"{option} is {text!r}; it must be different words with commas between them")
    return parts


def numbers(option: str, text: str) -> list[int]:
    try:
        return [int(word) for word in words(option, text)]
    except ValueError:
        raise WhaleflError(f"{option} is {text!r}; it must be whole numbers with commas between them") from None


def repeating_command() -> str:
    """The command as it was typed."""
    return shlex.join(["whalefl", *sys.argv[1:]])
