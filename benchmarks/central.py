"""Train a task centrally, in the plainest way there is: a check of data and model against known results.

    python benchmarks/central.py cifar10 --device cuda      # writes results/central/cifar10.json
    python benchmarks/central.py --table                    # results/central/README.md and the text's curve

Nothing federated is used: torch's own optimizers, one model, all training data. Only the evaluation is the library's.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from whalefl.federation.evaluation import batch_norms, evaluate, score
from whalefl.tasks.catalogue import load_task
from whalefl.tasks.task import Task

RESULTS = Path(__file__).parent.parent / "results" / "central"


@dataclass(frozen=True)
class Recipe:
    """Epochs, batch, peak learning rate (one cycle: up for a tenth, then down along a cosine) and optimizer."""

    epochs: int
    batch: int
    lr: float
    optimizer: str
    known: str


RECIPES = {
    "digits": Recipe(15, 32, 0.05, "sgd", "97 %"),
    "mnist": Recipe(8, 128, 0.05, "sgd", "99 %"),
    "har": Recipe(30, 64, 0.05, "sgd", "90 %"),
    "cifar10": Recipe(20, 128, 0.1, "sgd", "92 %"),
    "wikitext2": Recipe(12, 64, 1e-3, "adamw", "far above the most frequent word"),
}


def train(task: Task, recipe: Recipe, bf16: bool) -> list[dict[str, float]]:
    device = task.train.inputs.device
    torch.manual_seed(0)
    model = task.build(task.full).to(device)
    parameters, steps = list(model.parameters()), len(task.train) // recipe.batch
    if recipe.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, recipe.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
    else:
        optimizer = torch.optim.AdamW(parameters, recipe.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.lr, total_steps=recipe.epochs * steps, pct_start=0.1, cycle_momentum=False
    )
    generator = torch.Generator(device).manual_seed(1)
    calibration = np.random.default_rng(0).permutation(len(task.train))[:10_000]
    curve, start = [], time.perf_counter()
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        for _, norm in batch_norms(model):
            norm.statistics = None
        order = torch.randperm(len(task.train), generator=generator, device=device)
        for indices in order[: steps * recipe.batch].view(steps, recipe.batch):
            uniforms = None
            if task.augment is not None:
                uniforms = torch.rand(recipe.batch, task.augment.draws, generator=generator, device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model(task.training_inputs(indices, uniforms)).flatten(0, -2)
            loss = F.cross_entropy(logits.float(), task.train.targets[indices].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
            schedule.step()
        weights = {name: p.detach() for name, p in model.named_parameters()}
        result = evaluate(task, model, weights, calibration) if batch_norms(model) else score(task, model)
        curve.append({"epoch": epoch, "accuracy": result.accuracy, "loss": result.loss, **result.more})
        print(f"{task.name} epoch {epoch}: {curve[-1]} after {time.perf_counter() - start:.0f} s", flush=True)
    return curve


def most_frequent(task: Task) -> float:
    """The accuracy of always answering with the most frequent target of the training data."""
    common = torch.bincount(task.train.targets.flatten(), minlength=task.classes).argmax()
    right = task.test.targets == common
    if task.masked is not None:
        right = right[task.masked(task.prepare(task.test.inputs))]
    return float(right.double().mean())


def write_table() -> None:
    """The table over all results, and the text's curve beside the line of the most frequent word."""
    rows = ["| task | accuracy | wanted | most frequent answer | epochs | command |", "|---|---|---|---|---|---|"]
    notes = []
    for name, recipe in RECIPES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            rows.append(f"| {name} | not run yet | {recipe.known} | | | |")
            continue
        result = json.loads(path.read_text())
        last = result["curve"][-1]
        rows.append(
            f"| {name} | {100 * last['accuracy']:.2f} % | {recipe.known} | {100 * result['most_frequent']:.1f} % "
            f"| {last['epoch']} | `{result['command']}` |"
        )
        notes += [f"- {name}: {note}." for note in result["notes"]]
        if "perplexity" in last:
            notes.append(
                f"- {name}: accuracy is that on masked positions; on all positions {100 * last['accuracy_all']:.1f} %, "
                f"perplexity {last['perplexity']:.2f}."
            )
            draw_curve(name, result)
    text = "# Trained centrally\n\nA check of data and models; nothing federated.\n\n" + "\n".join(rows) + "\n\n"
    text += "\n".join(notes) + "\n\n![masked accuracy of the Transformer](wikitext2.png)\n"
    (RESULTS / "README.md").write_text(text + "\nMade with `python benchmarks/central.py --table`.\n")


def draw_curve(name: str, result: dict) -> None:  # type: ignore[type-arg]
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    epochs = [point["epoch"] for point in result["curve"]]
    axis.plot(epochs, [100 * point["accuracy"] for point in result["curve"]], marker="o", label="Transformer")
    axis.axhline(100 * result["most_frequent"], color="grey", linestyle=":", label="always the most frequent word")
    axis.set(xlabel="epoch", ylabel="top-1 on masked positions (%)", ylim=(0, None), title=name)
    axis.legend()
    axis.grid(alpha=0.3)
    figure.savefig(RESULTS / f"{name}.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", nargs="?", choices=RECIPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.task:
        task = load_task(arguments.task).to(arguments.device)
        recipe = RECIPES[arguments.task]
        options = f" --device {arguments.device}" * (arguments.device != "cpu") + " --bf16" * arguments.bf16
        result = {
            "command": f"python benchmarks/central.py {arguments.task}{options}",
            "recipe": asdict(recipe),
            "notes": task.notes,
            "most_frequent": most_frequent(task),
            "curve": train(task, recipe, arguments.bf16),
        }
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{arguments.task}.json").write_text(json.dumps(result, indent=1) + "\n")
    if arguments.table:
        write_table()


if __name__ == "__main__":
    main()
