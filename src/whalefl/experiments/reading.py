"""Reading results: the runs of a cell summarised against a target, on the metric that the task is read on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import mean

from whalefl.config import preset
from whalefl.experiments.cells import Cell
from whalefl.experiments.paper import FINAL_ACCURACY
from whalefl.experiments.protocol import FIRST_TUNING_SEED, LABELS, Setting
from whalefl.experiments.store import Finished, Store
from whalefl.report.comparison import Unit
from whalefl.report.statistics import Speedup, speedup
from whalefl.report.summary import RunSummary, final_accuracy, summarise_diverged

Summaries = Mapping[int, RunSummary]

TUNING_SEEDS = 2
SECOND_SHARE = 0.95
"""The second target of a task: this share of what FedAvg reaches on the tuning seeds."""


def main_cell(setting: Setting, method: str) -> Cell:
    """A method of the paper with nothing changed."""
    return Cell(setting, method, LABELS[method])


def tuning_setting(setting: Setting) -> Setting:
    """A task as it is tuned."""
    return replace(setting, hours=setting.tuning_hours)


def tuned_reference(setting: Setting) -> Cell:
    """FedAvg as it is reported, on the tuning seeds and the validation set."""
    return Cell(
        tuning_setting(setting),
        "fedavg",
        "FedAvg",
        overrides=(("evaluation.on", "validation"),),
        seeds=TUNING_SEEDS,
        first_seed=FIRST_TUNING_SEED,
        tier=0,
    )


def summaries(
    store: Store, cell: Cell, target: float | None = None, metric: str | None = None
) -> dict[int, RunSummary]:
    """The summaries of a cell's runs that have ended, by seed; target and metric are the setting's own unless given."""
    metric = metric or metric_of(store, cell.setting)
    wanted = cell.setting.target if target is None else target
    return {seed: _summary(run, wanted, metric) for seed, run in store.ended(cell).items()}


def _summary(run: Finished, target: float, metric: str) -> RunSummary:
    if run.diverged:
        return summarise_diverged(run.records(), target, run.run.experiment.horizon_s)
    return run.summary(target, metric)


def untuned_reference(setting: Setting) -> Cell:
    """FedAvg with the authors' settings, whatever tuning finds, on the tuning seeds and the validation set."""
    training = preset(setting.task)["training"]
    own = tuple((f"training.{key}", training[key]) for key in ("lr", "iterations"))
    cell = tuned_reference(setting)
    return replace(cell, overrides=(*cell.overrides, *own))


def metric_of(store: Store, setting: Setting) -> str:
    """What counts as accuracy: for texts, whichever of the two FedAvg with the authors' settings brings closer to the
    paper's figure for it, on the tuning seeds and the validation set."""
    runs = store.runs(untuned_reference(setting)) if setting.task == "wikitext2" else {}
    if not runs:
        return "accuracy"
    wanted = FINAL_ACCURACY[setting.task]["fedavg"]
    finals = {n: mean(final_accuracy(run.records(n)) for run in runs.values()) for n in ("accuracy", "accuracy_all")}
    return min(finals, key=lambda name: abs(finals[name] - wanted))


def second_target(store: Store, setting: Setting) -> float | None:
    """95 % of FedAvg's final accuracy on the tuning seeds; None while those runs are missing."""
    found = summaries(store, tuned_reference(setting), metric=metric_of(store, setting))
    if len(found) < TUNING_SEEDS:
        return None
    return SECOND_SHARE * mean(run.final_accuracy for run in found.values())


def speedup_over(
    store: Store, reference: Cell, cell: Cell, target: float | None = None, unit: Unit = "seconds"
) -> Speedup | None:
    """How many times sooner than the reference; None while one of the two has no runs."""
    known, runs = summaries(store, reference, target), summaries(store, cell, target)
    found = speedup(known, runs, unit)
    return found if found.seeds else None
