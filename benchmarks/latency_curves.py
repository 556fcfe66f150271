"""Where each task lies on the measured curve of each device: docs/latency.md and its picture.

python benchmarks/latency_curves.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from whalefl.fleet.devices import KINDS, REFERENCE_FLOPS, measured_times, seconds_per_sample  # noqa: E402
from whalefl.markdown import grid
from whalefl.tasks.catalogue import TASKS, load_task  # noqa: E402
from whalefl.tasks.costs import LevelCost, level_costs  # noqa: E402
from whalefl.values import Ladder  # noqa: E402

SAMPLES = 640  # ten mini-batches of 64
RATES = (80, 20, 10)  # Mbit/s

DOCS = Path(__file__).parent.parent / "docs"


def table(costs: dict[str, tuple[LevelCost, ...]]) -> str:
    head = ["task", "level", "parameters", "MFLOP per sample", *(f"{kind} (ms)" for kind in KINDS), "range"]
    rows = [head]
    for task, levels in costs.items():
        for cost in levels:
            times = [f"{1000 * seconds_per_sample(kind, cost.flops):.2f}" for kind in KINDS]
            rows.append(
                [task, str(cost.level), f"{cost.parameters:,}", f"{cost.flops / 1e6:.2f}", *times, where(cost.flops)]
            )
    return grid(rows).rstrip()


def elasticities(costs: dict[str, tuple[LevelCost, ...]]) -> str:
    """What system efficiency sees: the share of the upload in the delay is d ln SE / d ln rate."""
    slow, fast, middle = KINDS[-1], KINDS[0], KINDS[1]
    head = ["task", "slice", *(f"to the rate, at {rate} Mbit/s" for rate in RATES)]
    head += [f"SE of {fast} / {slow}", f"SE of {middle} / {slow}"]
    rows = [head]
    for task, levels in costs.items():
        for name, cost in (("smallest", levels[-1]), ("whole", levels[0])):
            computing = {kind: SAMPLES * seconds_per_sample(kind, cost.flops) for kind in KINDS}
            uploading = {rate: 32e-6 * cost.parameters / rate for rate in RATES}
            to_rate = [f"{up / (up + computing[slow]):.3f}" for up in uploading.values()]
            up = uploading[20]
            ratios = [f"{(up + computing[slow]) / (up + computing[kind]):.2f}" for kind in (fast, middle)]
            rows.append([task, name, *to_rate, *ratios])
    return grid(rows).rstrip()


def where(flops: float) -> str:
    points = sorted(REFERENCE_FLOPS.values())
    if flops in points:
        return "measured"
    if flops > points[-1]:
        return f"extrapolated {flops / points[-1]:.1f} x"
    return "flat" if flops < points[0] else "between"


def draw(costs: dict[str, tuple[LevelCost, ...]]) -> None:
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    grid = np.geomspace(2e4, 2e10, 400)
    for color, kind in enumerate(KINDS):
        axis.plot(grid, [1000 * seconds_per_sample(kind, f) for f in grid], color=f"C{color}", label=kind)
        points = [(REFERENCE_FLOPS[width], 1000 * s) for width, s in measured_times()[kind].items()]
        axis.plot(*zip(*points, strict=True), "o", color=f"C{color}", markersize=4)
    for height, (task, levels) in enumerate(costs.items()):
        for cost in levels:
            axis.plot(cost.flops, 0.012 * 1.9**height, "|", color="black", markersize=9)
        axis.text(levels[0].flops * 1.3, 0.012 * 1.9**height, task, va="center", fontsize=8)
    axis.set(xscale="log", yscale="log", ylim=(0.008, None), xlabel="FLOPs of a training step per sample")
    axis.set_ylabel("training time per sample (ms)")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    (DOCS / "pictures").mkdir(exist_ok=True)
    figure.savefig(DOCS / "pictures" / "latency.png", dpi=120)


def main() -> None:
    costs = {name: level_costs(load_task(name), Ladder()) for name in TASKS}
    draw(costs)
    text = f"""# How long a training step takes on each device

Dots are measured (the CNN on MNIST at five widths), lines are the curve the simulator uses: piecewise linear between
the dots, proportional beyond the widest, flat below the narrowest. The ticks at the bottom are the five levels of each
task, placed by their FLOPs, which torch's own counter gives for one forward and backward pass.

![training time per sample over FLOPs](pictures/latency.png)

Times per sample in milliseconds. "measured" rows are the table itself; "extrapolated" ones lie beyond it, and results
on them rest on the assumption that time is proportional to FLOPs there.

{table(costs)}

## What system efficiency sees

SE = T / (delay of uploading + delay of computing), so its elasticity to the link's rate is the share of the upload in
the delay: 0 where it does not see the link, 1 where it sees nothing else. The paper looks at the smallest slice
(`se_reference = "unit"`), whose upload hardly shows but for the Transformer's; the whole model (`"full"`) is the
alternative. Elasticities are those of a {KINDS[-1]} with {SAMPLES} samples a round; the last columns say how far apart
SE puts kinds of devices at 20 Mbit/s.

{elasticities(costs)}

Made with `python benchmarks/latency_curves.py`.
"""
    (DOCS / "latency.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
