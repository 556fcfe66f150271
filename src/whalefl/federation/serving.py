"""The trained model at every size: a prefix slice of each level with batch-norm statistics of its own.

Trained with nested slices, one model serves as many sizes as there are levels. The statistics are kept with the run,
so that a slice can be exported without data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whalefl.federation.evaluation import batch_norms, evaluate
from whalefl.federation.stacks import resident
from whalefl.subnet.plans import Prefix
from whalefl.subnet.slicing import Weights, cut
from whalefl.tasks.task import Shape, Task
from whalefl.values import Ladder


@dataclass(frozen=True)
class ServedLevel:
    """One size of the trained model on the whole test set.

    `nested` says whether this slice was trained as such; after random or rolling extraction it was not.
    """

    level: int
    width: float
    parameters: int
    nested: bool
    accuracy: float
    loss: float
    metrics: Mapping[str, float]


def serve_levels(
    task: Task, ladder: Ladder, nested: bool, weights: Weights, calibration: NDArray[np.int64]
) -> tuple[list[ServedLevel], dict[str, Tensor]]:
    """Score every level, and collect the statistics of its batch norms as `level/layer/mean` and `.../variance`."""
    served, statistics = [], {}
    for level in ladder:
        width = ladder.width(level)
        plan = Prefix().plan(task.axes, width, 0, 0, 0)
        model = resident(task.build(Shape.of(plan, width)), task.train.inputs.device)
        score = evaluate(task, model, cut(task.axes, weights, plan), calibration)
        count = task.axes.slice_count(plan)
        served.append(ServedLevel(level, width, count, nested, score.accuracy, score.loss, score.more))
        for name, norm in batch_norms(model):
            if norm.statistics is not None:
                mean, variance = norm.statistics
                statistics[f"{level}/{name}/mean"], statistics[f"{level}/{name}/variance"] = mean, variance
    return served, statistics
