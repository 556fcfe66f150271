"""A validation set cut out of the training set: settings are chosen on it, so that the test set stays unread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from whalefl.errors import require
from whalefl.rng import stream
from whalefl.tasks.task import Examples, Task

SHARE = 0.1


def with_validation(task: Task) -> Task:
    """The task that trains on nine tenths of its training examples and is tested on the rest, always the same ones."""
    held = held_out(task.train.targets.cpu().numpy())
    require(len(held) > 0, "evaluation.on", "validation", "'test' for a task with so few training examples")
    place = task.train.inputs.device
    chosen = torch.zeros(len(task.train), dtype=torch.bool)
    chosen[torch.from_numpy(held)] = True
    mask = chosen.to(place)
    inputs = task.train.inputs[mask]
    if task.masked is not None and task.augment is not None:
        # The words of a text that are hidden in testing are always the same.
        draws = stream(0, "validation words").random((len(held), task.augment.draws), dtype=np.float32)
        inputs = task.augment.apply(inputs, torch.from_numpy(draws).to(place))
    return replace(
        task,
        train=Examples(task.train.inputs[~mask], task.train.targets[~mask]),
        test=Examples(inputs, task.train.targets[mask]),
        groups=None if task.groups is None else task.groups[~chosen.numpy()],
    )


def held_out(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """A tenth of every class, drawn; of texts, which have no classes, every tenth example from end to end."""
    if targets.ndim > 1:
        return np.arange(round(1 / SHARE) - 1, len(targets), round(1 / SHARE))
    chosen = []
    for label in np.unique(targets):
        members = np.flatnonzero(targets == label)
        order = stream(0, "validation", int(label)).permutation(members)
        chosen.append(order[: round(SHARE * len(members))])
    return np.sort(np.concatenate(chosen))
