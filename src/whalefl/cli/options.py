"""What the commands share: options into experiments, and the line that repeats a command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whalefl.config import Experiment, Values, assignments, compose, merged, preset, read_toml
from whalefl.errors import WhaleflError
from whalefl.runs import COMPARISON, RUN


def experiment_of(
    task: str | None, config: Path | None, pairs: Sequence[str], options: Values, swept: Sequence[str] = ()
) -> Experiment:
    """The experiment that a command describes."""
    return compose(layers_of(task, config, pairs, options, swept))


def layers_of(
    task: str | None, config: Path | None, pairs: Sequence[str], options: Values, swept: Sequence[str] = ()
) -> list[Values]:
    """What a command says, later layers over earlier: presets, the file, options, --set, --sweep.

    The presets are the task's, and the one for this method on this task (for a pair, that of the method which it is or
    is a part of). A file that names its task stands for itself, so that the config.toml of a run repeats that run
    exactly: then there are none.
    """
    refuse_keys(("task",), pairs, "--set")
    file = _config(config) if config is not None else {}
    above = [{key: value for key, value in options.items() if value is not None}]
    above += [assignments(pairs, "--set"), assignments(swept, "--sweep")]
    if "task" in file and task in (None, file["task"]):
        return [{}, file, *above]
    name = task or Experiment.task
    method = next((layer["method"] for layer in reversed([file, *above]) if "method" in layer), Experiment.method)
    if isinstance(method, str) and "+" in method:
        from whalefl.federation.methods import named_like

        method = named_like(method)
    return [merged(preset(name), preset(f"{name}/{method}")), file, {"task": name}, *above]


def _config(config: Path) -> Values:
    """A file, or else a preset by name."""
    named = {} if config.exists() else preset(str(config))
    return named or read_toml(config)


def refuse_keys(keys: Sequence[str], pairs: Sequence[str], option: str) -> None:
    """Some keys are what a command line is about, and setting them behind its back would mislabel what it does."""
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        if key in keys:
            raise WhaleflError(f"{option} is {pair!r}; {key} must be given as an argument or option of its own")


def refuse_file_of_one_method(config: Path | None, methods: Sequence[str]) -> None:
    """A file that names its method, as the config.toml of a run does, holds settings that were chosen for that method;
    under them no other would have its own."""
    method = None if config is None else _config(config).get("method")
    if method is not None and any(name != method for name in methods):
        raise WhaleflError(
            f"config is {str(config)!r}, which holds the settings of {method}; to compare methods under them "
            "delete its line `method`"
        )


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


def repeating_command(new_folder: bool = True) -> str:
    """The command as it was typed; but for the folder if that has to be a new one, since it is taken now."""
    words = sys.argv[1:]
    if not new_folder:
        return shlex.join(["whalefl", *words])
    places = [place for place, word in enumerate(words) if word == "--out"]
    taken = {*places, *(place + 1 for place in places)}
    kept = [word for place, word in enumerate(words) if place not in taken and not word.startswith("--out=")]
    return shlex.join(["whalefl", *kept])


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """If what is done in a folder is interrupted, say how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if any((folder / name).exists() for name in (RUN, COMPARISON)):
            print(f"whalefl: interrupted; to go on: {shlex.join(['whalefl', 'resume', str(folder)])}", file=sys.stderr)
        raise
