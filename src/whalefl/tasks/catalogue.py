"""Tasks by name, the user's own among them."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from whalefl.errors import WhaleflError, require_one_of
from whalefl.tasks.layers import NORMS
from whalefl.tasks.task import Task

_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

TASKS = {name: f"whalefl.tasks.{name}:{name}" for name in ("digits", "mnist", "cifar10", "har", "wikitext2")}
"""name -> where the function that makes the task is: imported when it is asked for."""


def load_task(name: str, data_dir: Path | None = None, norm: str = "batch") -> Task:
    """A task by name, or `module:function` for one of the user's own, looked for in the current folder too.

    `data_dir` is where its data set is looked for first, and `norm` what its model normalises with; a function of
    the user's own is given them where it has arguments of these names.
    """
    require_one_of("norm", norm, NORMS)
    if ":" not in name:
        require_one_of("task", name, TASKS)
        return _made(TASKS[name], name, data_dir, norm)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _made(name, name, data_dir, norm)


def _made(where: str, name: str, data_dir: Path | None, norm: str) -> Task:
    module, _, function = where.partition(":")
    if not (module and function):
        raise WhaleflError(f"task is {name!r}; it must be module:function")
    try:
        make = getattr(import_module(module), function)
        if not callable(make):
            raise AttributeError(f"{function} is no function")
    except (ImportError, AttributeError) as error:
        raise WhaleflError(
            f"task is {name!r}, which cannot be imported ({error}); it must be module:function"
        ) from error
    options: dict[str, Any] = {}
    if data_dir is not None and "data_dir" in signature(make).parameters:
        options["data_dir"] = data_dir
    if norm != "batch":
        if "norm" not in signature(make).parameters:
            raise WhaleflError(f"norm is {norm!r}; it must be 'batch', since the task {name!r} offers no other")
        options["norm"] = norm
    parameters = signature(make).parameters.values()
    missing = [p.name for p in parameters if p.default is p.empty and p.kind not in _ANY and p.name not in options]
    if missing:
        wanted = ", ".join(missing)
        raise WhaleflError(
            f"task is {name!r}, which wants {wanted}; it must be a function that makes a Task of nothing"
        )
    task = make(**options)
    if not isinstance(task, Task):
        raise WhaleflError(f"task is {name!r}, which returned {type(task).__name__}; it must return a whalefl.Task")
    return task
