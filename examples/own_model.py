"""A model of your own: build it from the sizes of its axes, and say which dimension is which axis.

Run it with `whalefl compare examples.own_model:task --rounds 30` from the repository, or as a script.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from whalefl import Axes, Task
from whalefl.tasks.layers import Scaler
from whalefl.tasks.task import Examples, Shape


def build(shape: Shape) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, shape["hidden"]), Scaler(shape.ratio), nn.ReLU(), nn.Linear(shape["hidden"], 10)
    )


AXES = Axes.of(
    {"hidden": 256},
    {"1.weight": ("hidden", 64), "1.bias": ("hidden",), "4.weight": (10, "hidden"), "4.bias": (10,)},
    labels={"4.weight": 0, "4.bias": 0},
)


def task() -> Task:
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    train, test = Examples(pixels[:1400], labels[:1400]), Examples(pixels[1400:], labels[1400:])
    return Task("own", AXES, build, train, test, classes=10, prepare=lambda x: x.float() / 16)


if __name__ == "__main__":
    from whalefl import Settings, simulate
    from whalefl.federation.methods import make_method

    for finished in simulate(task(), make_method("whale"), settings=Settings(rounds=10)):
        record = finished.record
        print(f"round {record.round:2d}  {record.time_s:5.1f} virtual s  accuracy {100 * (record.accuracy or 0):.1f} %")
