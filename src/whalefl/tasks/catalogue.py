"""Tasks by name, the user's own among them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from whalefl.errors import WhaleflError, require_one_of
from whalefl.tasks.digits import digits
from whalefl.tasks.task import Task

TASKS = {"digits": digits}


def load_task(name: str) -> Task:
    """A task by name, or `module:function` for one of the user's own, looked for in the current folder too."""
    if ":" not in name:
        require_one_of("task", name, TASKS)
        return TASKS[name]()
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise WhaleflError(
            f"task is {name!r}, which cannot be imported ({error}); it must be module:function"
        ) from error
    task = make()
    if not isinstance(task, Task):
        raise WhaleflError(f"task is {name!r}, which returned {type(task).__name__}; it must return a whalefl.Task")
    return task
