"""Tuning: the same number of settings for every method, on seeds and examples that no reported run reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import mean

from whalefl.config import Values, merged
from whalefl.experiments.cells import Cell, Overrides, Table, layer
from whalefl.experiments.protocol import FIRST_TUNING_SEED, LABELS, SEVEN, Setting
from whalefl.experiments.reading import TUNING_SEEDS, second_target, summaries, tuning_setting
from whalefl.experiments.store import Store
from whalefl.experiments.tables import NOT_RUN, share_text
from whalefl.federation.methods import METHODS
from whalefl.fleet.devices import KINDS
from whalefl.markdown import grid
from whalefl.report.comparison import Bounded, geometric_mean, spent
from whalefl.report.summary import RunSummary, mean_known

LEARNING_RATES = {
    "mnist": (0.01, 0.03, 0.1),
    "har": (0.01, 0.03, 0.1),
    "cifar10": (0.03, 0.1, 0.3),
    "wikitext2": (0.03, 0.1, 0.3),
}
"""Three for every method; each is tried with both of the method's own variants."""

LEVEL_MAPS = {"levels 1 2 3 4 5": (1, 2, 3, 4, 5), "levels 1 1 2 2 3": (1, 1, 2, 2, 3)}
"""The fixed level of each kind of device, the fastest kind first."""

FINALISTS = 2
"""So many settings of a method are tried with all tuning seeds."""

MOST_SHARE = 0.7
"""A WHALE setting that trains more of the model than this, on average, is FedAvg in disguise and does not count."""

Variant = tuple[str, Overrides]


def fixed_levels(levels: Sequence[int], key: str = "fixed_level") -> Overrides:
    """The testbed with one level for each kind of device: the fixed one, or the widest an adaptive policy may take."""
    groups = tuple(Table.of(kind=kind, **{key: level}) for kind, level in zip(KINDS, levels, strict=True))
    return (("fleet.groups", groups),)


def variants(method: str) -> tuple[Variant, ...]:
    """The two variants of a method's own knob."""
    match METHODS[method][1]:
        case "full":
            return tuple((f"K {k}", (("training.iterations", k),)) for k in (10, 5))
        case "fixed":
            return tuple((name, fixed_levels(levels)) for name, levels in LEVEL_MAPS.items())
        case _:
            return tuple(
                (f"U_th at quantile {quantile:g}", (("whale.quantile", quantile),)) for quantile in (0.6, 0.75)
            )


def tuning_cells(setting: Setting) -> tuple[Cell, ...]:
    """Every setting of every method that is tried on a task, with one seed."""
    return tuple(cell for method in SEVEN for cell in method_cells(setting, method))


def method_cells(setting: Setting, method: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            tuning_setting(setting),
            method,
            f"{LABELS[method]}, lr {lr:g}, {name}",
            overrides=(("evaluation.on", "validation"), ("training.lr", lr), *overrides),
            seeds=1,
            first_seed=FIRST_TUNING_SEED,
            tier=0,
        )
        for lr in LEARNING_RATES[setting.task]
        for name, overrides in variants(method)
    )


@dataclass(frozen=True)
class Trial:
    """How a setting did on the tuning seeds."""

    cell: Cell
    runs: tuple[RunSummary, ...]

    @property
    def diverged(self) -> int:
        return sum(run.diverged for run in self.runs)

    @property
    def counts(self) -> bool:
        """Whether it may win."""
        adaptive = METHODS[self.cell.method][1] == "whale"
        return not self.diverged and not (adaptive and (self.share or 0) > MOST_SHARE)

    @property
    def kept(self) -> int:
        """How many runs reached the target and ended at or above it."""
        return sum(map(self._kept, self.runs))

    def _kept(self, run: RunSummary) -> bool:
        return run.reached_s is not None and run.final_accuracy >= self.cell.setting.target

    @property
    def seconds(self) -> Bounded:
        """The geometric mean of the times to the target; a target that was lost again counts as not reached."""
        times = [Bounded(spent(run)) if self._kept(run) else Bounded(run.time_s, "≥") for run in self.runs]
        found = geometric_mean(times)
        assert found is not None  # there are runs
        return found

    @property
    def final(self) -> float:
        return mean(run.final_accuracy for run in self.runs)

    @property
    def share(self) -> float | None:
        return mean_known(run.mean_share for run in self.runs)

    @property
    def standing(self) -> tuple[float, ...]:
        """The better the smaller: most seeds that kept the target, then soonest; where none did, the best final."""
        if self.kept:
            return (-self.kept, self.seconds.value, -self.final)
        return (0, -self.final, 0)


def trial(store: Store, cell: Cell) -> Trial | None:
    """None while the setting has not been run."""
    runs = tuple(summaries(store, cell).values())
    return Trial(cell, runs) if runs else None


def finalists(store: Store, setting: Setting, method: str) -> tuple[Cell, ...]:
    """The best settings of a method after one seed, to be tried with all; none while not all settings are run."""
    found = [trial(store, cell) for cell in method_cells(setting, method)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return ()
    best = sorted((one for one in known if one.counts), key=lambda one: one.standing)[:FINALISTS]
    return tuple(with_all_seeds(one.cell) for one in best)


def with_all_seeds(cell: Cell) -> Cell:
    return replace(cell, seeds=TUNING_SEEDS)


def winner(store: Store, setting: Setting, method: str) -> Trial | None:
    """The best finalist of a method that counts; None while there is none, or while not all seeds are run."""
    found = [trial(store, cell) for cell in finalists(store, setting, method)]
    known = [one for one in found if one is not None and len(one.runs) == TUNING_SEEDS]
    if len(known) < len(found):
        return None
    return min((one for one in known if one.counts), key=lambda one: one.standing, default=None)


def nested_relative(method: str) -> str:
    """The method with the same policy whose slices are nested."""
    policy = METHODS[method][1]
    return next(name for name in SEVEN if METHODS[name] == ("prefix", policy))


def borrowed(store: Store, setting: Setting, method: str) -> Trial | None:
    """The winner of a method's nested relative, whose settings a method takes over that was not tuned itself; None
    where it was, won or not, or where the relative was not either."""
    tuned = any(trial(store, cell) is not None for cell in method_cells(setting, method))
    return None if tuned else winner(store, setting, nested_relative(method))


@dataclass(frozen=True)
class TuningTable:
    """All settings that were tried on a task, and the winners."""

    setting: Setting

    def markdown(self, store: Store) -> str:
        rows: list[tuple[str, ...]] = [
            ("setting", "reached and kept", "hours to target", "final accuracy", "share trained", "")
        ]
        for method in SEVEN:
            best = winner(store, self.setting, method)
            rows += [_row(store, cell, best) for cell in method_cells(self.setting, method)]
        target = second_target(store, self.setting)
        second = "not known yet" if target is None else f"{100 * target:.2f} %"
        return (
            f"### {self.setting.name}: {100 * self.setting.target:.0f} % of the validation set within "
            f"{tuning_setting(self.setting).hours:g} virtual hours\n\n{grid(rows)}\nSecond target: {second}.\n"
        )


def preset_of(best: Trial, method: str) -> Values:
    """What a winner sets over the presets of its task: the content of the preset of its method, or of one that takes
    its settings over."""
    chosen = [layer(key, value) for key, value in best.cell.overrides if not key.startswith("evaluation.")]
    return reduce(merged, chosen, {"method": method})


def _row(store: Store, cell: Cell, best: Trial | None) -> tuple[str, ...]:
    found = trial(store, with_all_seeds(cell))
    if found is None:
        return (cell.label, NOT_RUN, "", "", "", "")
    hours = replace(found.seconds, value=found.seconds.value / 3600)
    mark = (
        "**winner**" if best is not None and best.cell.label == cell.label else "" if found.counts else "does not count"
    )
    return (
        cell.label,
        f"{found.kept} of {len(found.runs)}" + (f" ({found.diverged} diverged)" if found.diverged else ""),
        hours.text(".2f"),
        f"{100 * found.final:.2f} %",
        share_text(found.share),
        mark,
    )
