"""One round of WHALE-FL in plain loops: choose, cut, train, average. The engines are tested to equal it.

It imports a task's data and model and the named random streams, and does everything else by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
import torch
import torch.nn.functional as F

from whalefl.rng import stream
from whalefl.tasks.digits import digits
from whalefl.tasks.task import Shape, Task

LEVELS, SHRINK, BETA = 5, 0.5, 2.0


@dataclass
class Device:
    """What a device knows: its data, its past Fisher information, and its delays for the smallest slice."""

    index: int
    examples: np.ndarray  # indices into the training set
    owned: tuple[int, ...]  # its classes
    fisher: list[list[float]]  # one list a round, one value a measured mini-batch; empty before its first round
    transmission_s: float
    computing_s: float
    consumed: int = 0  # how many examples it has trained on so far


def choose(device: Device, batches: int, preferred_s: float | None, threshold: float | None) -> int:
    """Utility = training efficiency x system efficiency^beta, normalised by the threshold, cut into P levels."""
    if not device.fisher or preferred_s is None or threshold is None:
        return LEVELS
    mean_squares = [sum(value**2 for value in values) / len(values) for values in device.fisher]
    training = batches * sqrt(sum(mean_squares) / len(mean_squares))
    system = preferred_s / (device.transmission_s + device.computing_s)
    normalised = min(1.0, training * system**BETA / threshold)
    return max(1, LEVELS - floor(LEVELS * normalised))


def batches_of(device: Device, count: int, size: int, seed: int) -> list[torch.Tensor]:
    """The next mini-batches: the data is reshuffled for every pass, and a batch may straddle two passes."""
    batches, place = [], device.consumed
    for _ in range(count):
        chosen = []
        for _ in range(size):
            lap, offset = divmod(place, len(device.examples))
            chosen.append(stream(seed, "batches", device.index, lap).permutation(device.examples)[offset])
            place += 1
        batches.append(torch.tensor(np.array(chosen)))
    return batches


def train(task: Task, model: torch.nn.Module, device: Device, batches: list[torch.Tensor], lr: float) -> None:
    """Plain SGD; the logits of classes that the device does not own are 0 in its loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)
    owned = torch.zeros(task.classes)
    owned[list(device.owned)] = 1
    for batch in batches:
        logits = model(task.prepare(task.train.inputs[batch])) * owned
        optimizer.zero_grad()
        F.cross_entropy(logits, task.train.targets[batch]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def one_round(
    task: Task,
    weights: dict[str, torch.Tensor],
    devices: list[Device],
    preferred_s: float | None,
    threshold: float | None,
    seed: int,
    iterations: int,
    batch: int,
    lr: float,
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The global model after a round, and the level that each device chose."""
    total = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    count = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    levels = []
    for device in devices:
        level = choose(device, iterations, preferred_s, threshold)
        width = SHRINK ** (level - 1)
        model = task.build(Shape({axis: ceil(n * width) for axis, n in task.axes.sizes.items()}, width))
        # A prefix slice is the leading block of every parameter, as large as the small model's own.
        blocks = {name: tuple(slice(0, n) for n in p.shape) for name, p in model.named_parameters()}
        model.load_state_dict({name: weights[name][block] for name, block in blocks.items()})
        train(task, model, device, batches_of(device, iterations, batch, seed), lr)
        for name, parameter in model.named_parameters():
            for row in range(len(parameter)):
                if not name.startswith("classifier") or row in device.owned:
                    total[name][row][blocks[name][1:]] += parameter[row].detach()
                    count[name][row][blocks[name][1:]] += 1
        levels.append(level)
    mean = {n: torch.where(count[n] > 0, total[n] / count[n], w.double()).float() for n, w in weights.items()}
    return mean, levels


if __name__ == "__main__":
    task = digits()
    labels = task.train.targets.numpy()
    devices = [
        Device(i, np.flatnonzero(np.isin(labels, (i, i + 5))), (i, i + 5), [[2.0 * i, 1.0]], 0.1, 0.2 * (5 - i))
        for i in range(5)
    ]
    weights, levels = one_round(task, task.initial_weights(0), devices, 0.5, 40.0, 0, iterations=5, batch=16, lr=0.01)
    print("levels", levels, "- first layer's mean weight per channel block:")
    print([round(float(block.mean()), 4) for block in weights["blocks.0.conv.weight"].chunk(4)])
