"""Who owns what, as plain numbers: what a run folder keeps of how its data was dealt out."""

from __future__ import annotations

from typing import Any

import numpy as np

from whalefl.federation.rounds import Federation

_MOST_CLASSES = 100
"""Up to so many classes each is counted; the words of a text are too many to be looked at one by one."""


def ownership(federation: Federation) -> dict[str, Any]:
    """The number of examples and of distinct labels of every device, and how often it has each label."""
    task = federation.task
    targets = task.train.targets.cpu().numpy()
    devices = []
    for member in federation.members:
        indices = member.share.indices
        row: dict[str, Any] = {
            "device": member.device.index,
            "kind": member.device.kind,
            "examples": len(indices),
            "labels": len(member.share.owned),
        }
        if task.classes <= _MOST_CLASSES:
            row["counts"] = np.bincount(targets[indices].ravel(), minlength=task.classes).tolist()
        devices.append(row)
    return {"task": task.name, "classes": task.classes, "devices": devices}
