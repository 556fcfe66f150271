"""Every table and figure of the paper, and what we add to them, as one value each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from matplotlib.figure import Figure

from whalefl.experiments.cells import Cell, Need, Overrides, Table
from whalefl.experiments.paper import (
    FINAL_ACCURACY,
    HOURS,
    SPEEDUP_OVER_FEDAVG,
    SPEEDUP_OVER_FEDAVG_BY_SIGMA,
    SPEEDUP_OVER_PEER,
)
from whalefl.experiments.pictures import Accuracies, Bars, CoverageCurves, FisherAndSize, Panel
from whalefl.experiments.protocol import (
    CIFAR10,
    HAR,
    LABELS,
    MNIST,
    PAIRS,
    SEVEN,
    SIGMAS,
    TASKS,
    WIKITEXT2,
    Setting,
)
from whalefl.experiments.reading import main_cell
from whalefl.experiments.store import Store
from whalefl.experiments.tables import Finals, Hours, Pair, Pairs
from whalefl.experiments.theorem import CoverageTable
from whalefl.experiments.trajectories import TrajectoryTable
from whalefl.experiments.tuning import TuningTable, finalists, fixed_levels, tuning_cells


class View(Protocol):
    def markdown(self, store: Store) -> str: ...


class Picture(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def caption(self) -> str: ...

    def draw(self, store: Store) -> Figure | None: ...


@dataclass(frozen=True)
class Study:
    """A table or figure: the cells it needs, and what is shown of them. `later` are cells that follow from results."""

    name: str
    title: str
    text: str
    cells: tuple[Cell, ...]
    tables: tuple[View, ...]
    pictures: tuple[Picture, ...] = ()
    later: Callable[[Store], tuple[Cell, ...]] = lambda _store: ()


def cells_of(setting: Setting, methods: Iterable[str] = SEVEN) -> tuple[Cell, ...]:
    return tuple(main_cell(setting, method) for method in methods)


def cifar_cells() -> tuple[Cell, ...]:
    """On CIFAR-10 the rolling and random methods come after everything else of the task."""
    first = ("fedavg", "heterofl", "whale")
    return tuple(main_cell(CIFAR10, m) if m in first else replace(main_cell(CIFAR10, m), tier=7) for m in SEVEN)


def task_cells() -> tuple[Cell, ...]:
    return tuple(c for s in TASKS for c in (cifar_cells() if s is CIFAR10 else cells_of(s)))


def peer_pair(setting: Setting, whale: str, peer: str, paper: float | None = None) -> Pair:
    return Pair(f"{LABELS[whale]} vs {LABELS[peer]}", main_cell(setting, whale), main_cell(setting, peer), paper)


def fedavg_pair(setting: Setting, method: str, paper: float | None = None) -> Pair:
    name = f"{LABELS[method]} vs FedAvg"
    return Pair(name, main_cell(setting, method), main_cell(setting, "fedavg"), paper)


def peer_pairs(settings: Iterable[Setting]) -> tuple[Pair, ...]:
    return tuple(
        peer_pair(s, whale, peer, SPEEDUP_OVER_PEER[s.task][whale] if s in TASKS else None)
        for s in settings
        for whale, peer in PAIRS
    )


TABLE1 = Study(
    "table1",
    "Table 1: how many times sooner the target is reached",
    "Each adaptive method against the fixed one with the same extraction, and all of them against FedAvg.",
    task_cells(),
    (
        Pairs("Against the fixed peer", peer_pairs(TASKS)),
        Pairs(
            "Against FedAvg",
            tuple(
                fedavg_pair(s, m, SPEEDUP_OVER_FEDAVG[s.task] if m == "whale" else None)
                for s in TASKS
                for m in SEVEN
                if m != "fedavg"
            ),
        ),
        *(Hours(s, cells_of(s), second=True) for s in TASKS),
    ),
    (
        Bars(
            "speedups", "Speed-ups over the fixed peer: ours with their intervals, and the paper's.", peer_pairs(TASKS)
        ),
    ),
)

TABLE2 = Study(
    "table2",
    "Table 2: final accuracy",
    "The mean over the last tenth of the virtual time that every method gets. The paper's last row prints WHALERolex "
    "where it must mean WHALEDropout.",
    task_cells(),
    (
        Finals(
            "Final accuracy",
            tuple((main_cell(s, m), FINAL_ACCURACY[s.task][m]) for s in TASKS for m in SEVEN),
            tuple(
                Pair(
                    f"{LABELS[peer]} => {LABELS[whale]}",
                    main_cell(s, whale),
                    main_cell(s, peer),
                    FINAL_ACCURACY[s.task][whale] - FINAL_ACCURACY[s.task][peer],
                )
                for s in TASKS
                for whale, peer in PAIRS
            ),
        ),
    ),
)


def sigma_table(setting: Setting) -> Hours:
    sigma = setting.sigma or 0
    return Hours(setting, cells_of(setting), HOURS[sigma], SPEEDUP_OVER_FEDAVG_BY_SIGMA[sigma])


TABLE3 = Study(
    "table3",
    "Table 3: CNN@MNIST under different data heterogeneity",
    "Every device owns 2, 5 or all 10 classes.",
    tuple(cell for setting in SIGMAS for cell in cells_of(setting)),
    (*(sigma_table(setting) for setting in SIGMAS), Hours(MNIST, cells_of(MNIST), second=True)),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            tuple(Panel(f"sigma {s.sigma}", s, cells_of(s)) for s in SIGMAS),
        ),
    ),
)

TASK_PERF = Study(
    "task_perf",
    "Figure: accuracy over time on four tasks",
    "The text says that WHALE reaches the target 1.5, 1.9, 1.3 and 2.1 times sooner than FedAvg.",
    task_cells(),
    (Pairs("Against FedAvg", tuple(fedavg_pair(s, "whale", SPEEDUP_OVER_FEDAVG[s.task]) for s in TASKS)),),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            tuple(Panel(s.name, s, cells_of(s)) for s in TASKS),
            columns=2,
        ),
    ),
)

FISHER_KINDS = ("MacBookPro2018", "JetsonTX2", "RaspberryPi4")

FISHER = Study(
    "fisher",
    "Figure: Fisher information and size over time (CNN@MNIST)",
    "Three kinds of device (means over the four of each kind), and all devices together: their mean Fisher information "
    "stands for that of the global model, and their mean share for its size. The trace over the slice trained grows "
    "with the slice, so size and trace are tied by construction; the trace over the smallest slice is not.",
    (main_cell(MNIST, "whale"),),
    (TrajectoryTable("What the sizes do", main_cell(MNIST, "whale"), FISHER_KINDS),),
    (
        FisherAndSize(
            "fisher", "Fisher information (red) and share trained (blue).", main_cell(MNIST, "whale"), FISHER_KINDS
        ),
    ),
)


def ablation_cells(setting: Setting, tier: int | None = None, seeds: int | None = None) -> tuple[Cell, ...]:
    """WHALE, its two halves, and FedAvg to compare with."""
    halves = {"prefix+whale-se": "system efficiency only", "prefix+whale-te": "training efficiency only"}
    return (
        main_cell(setting, "fedavg"),
        main_cell(setting, "whale"),
        *(Cell(setting, m, label, like="whale", tier=tier, seeds=seeds) for m, label in halves.items()),
    )


ABLATION = Study(
    "ablation",
    "Figure: system efficiency against training efficiency",
    "The paper shows ResNet18@CIFAR10; CNN@MNIST is added. All variants calibrate their threshold with one quantile.",
    (*ablation_cells(CIFAR10, 7), *ablation_cells(MNIST, 4, 5)),
    tuple(
        view
        for setting, cells in ((CIFAR10, ablation_cells(CIFAR10, 7)), (MNIST, ablation_cells(MNIST, 4, 5)))
        for view in (
            Hours(setting, cells),
            Finals(f"{setting.name}: final accuracy", tuple((cell, None) for cell in cells)),
        )
    ),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            (
                Panel(CIFAR10.name, CIFAR10, ablation_cells(CIFAR10, 7)),
                Panel(MNIST.name, MNIST, ablation_cells(MNIST, 4, 5)),
            ),
        ),
    ),
)

BETAS, WINDOWS, THRESHOLDS = (1.0, 2.0, 5.0), (1, 10, 20), {"low": 0.5, "medium": 1.0, "high": 2.5}
NORMALISATIONS = ("trace", "unit", "mean")


def sweep_cell(setting: Setting, label: str, overrides: Overrides, factor: float | None, tier: int) -> Cell:
    """WHALE with one thing changed; with a `factor`, its threshold is that many times the unchanged run's."""
    whale = main_cell(setting, "whale")
    need = None if factor is None else Need("threshold", whale, factor)
    return Cell(setting, "whale", label, overrides=overrides, need=need, seeds=3, tier=tier)


def sweeps(setting: Setting, tier: int) -> dict[str, tuple[Cell, ...]]:
    return {
        "beta": tuple(sweep_cell(setting, f"beta {beta:g}", (("whale.beta", beta),), 1.0, tier) for beta in BETAS),
        "D": tuple(sweep_cell(setting, f"D {d}", (("whale.window", d),), 1.0, tier) for d in WINDOWS),
        "U_th": tuple(
            sweep_cell(setting, f"U_th {name} ({factor:g} x)", (), factor, tier) for name, factor in THRESHOLDS.items()
        ),
        "Fisher": tuple(sweep_cell(setting, f"Fisher {n}", (("whale.fisher", n),), None, tier) for n in NORMALISATIONS),
    }


SWEEPS = {MNIST.name: sweeps(MNIST, 4), WIKITEXT2.name: sweeps(WIKITEXT2, 9)}

SENSITIVITY = Study(
    "sensitivity",
    "Figure: sensitivity to beta, D and U_th",
    "Sweeps of beta and D keep the threshold of the unchanged run with the same seed; low, medium and high thresholds "
    "are 0.5, 1 and 2.5 times it, the ratio of the paper's 10 to 50. The three scalars made of the Fisher matrix "
    "calibrate themselves. Speed-ups are over the first row of each table.",
    tuple(cell for by_knob in SWEEPS.values() for cells in by_knob.values() for cell in cells),
    tuple(
        view
        for setting in (MNIST, WIKITEXT2)
        for knob, cells in SWEEPS[setting.name].items()
        for view in (
            Hours(setting, cells),
            Finals(f"{setting.name}, {knob}: final accuracy", tuple((cell, None) for cell in cells)),
            TrajectoryTable(f"{setting.name}, {knob}: sizes and steadiness", cells[0], (), cells[1:]),
        )
    ),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            tuple(
                Panel(f"{knob}, {setting.name}", setting, cells)
                for setting in (MNIST, WIKITEXT2)
                for knob, cells in SWEEPS[setting.name].items()
            ),
        ),
    ),
)

SIGMA_PAIRS = tuple(
    fedavg_pair(s, m, SPEEDUP_OVER_FEDAVG_BY_SIGMA[s.sigma or 0][m]) for s in SIGMAS for m in SEVEN if m != "fedavg"
)

HETEROGENEITY = Study(
    "heterogeneity",
    "Impacts of data heterogeneity",
    "The runs of Table 3 read the other way: what fewer classes on a device cost, and what adapting gains.",
    TABLE3.cells,
    (
        Pairs("Against the fixed peer", peer_pairs(SIGMAS)),
        Pairs(
            "Against FedAvg",
            SIGMA_PAIRS,
        ),
    ),
    (
        Bars(
            "speedups",
            "Speed-ups over FedAvg at each sigma: ours with their intervals, and the paper's.",
            SIGMA_PAIRS,
        ),
    ),
)

THEOREM = Study(
    "theorem",
    "The theorem's quantities: regions trained, |M*|, the share untouched",
    "Coverage is counted coordinate by coordinate: |M*| is the least number of devices over the coordinates trained at "
    "all in a round, untouched the share that nobody trained. Rows of the classifier count for owners of the label "
    "only, so with two classes a device |M*| is at most 4. Regions are those of nested slices. Of what adaptive "
    "methods leave untouched, nearly all is in rounds 1 and 2, in which every device trains the smallest slice.",
    cells_of(MNIST),
    (CoverageTable("CNN@MNIST", cells_of(MNIST)),),
    (CoverageCurves("coverage", "Coverage over virtual time, median of the seeds.", cells_of(MNIST)),),
)


def control(method: str, label: str, like: str, overrides: Overrides = (), need: Need | None = None) -> Cell:
    return Cell(MNIST, method, label, overrides=overrides, like=like, need=need, seeds=5, tier=3)


WHALE = main_cell(MNIST, "whale")

CONTROL_CELLS = (
    control(
        "prefix+replay", "WHALE's levels permuted", "whale", (("replay.order", "permuted"),), Need("levels", WHALE)
    ),
    control("prefix+replay", "random, WHALE's histogram", "whale", (("replay.order", "drawn"),), Need("levels", WHALE)),
    control("fedavg", "full width, K 5", "fedavg", (("training.iterations", 5),)),
    control("fedavg", "full width, K 2", "fedavg", (("training.iterations", 2),)),
    control("fedavg", "FedAvg, slowest 10 % dropped", "fedavg", (("wait_for", 0.9),)),
    control("fedavg", "FedAvg, slowest 20 % dropped", "fedavg", (("wait_for", 0.8),)),
    control("prefix+random-once", "HeteroFL, levels drawn once", "heterofl"),
    control("prefix+random", "HeteroFL, levels redrawn every round", "heterofl"),
    control("whale", "WHALE capped at the fixed level", "whale", fixed_levels((1, 2, 3, 4, 5), "widest_level")),
)

CONTROLS_SHOWN = (*cells_of(MNIST, ("fedavg", "heterofl", "whale")), *CONTROL_CELLS)

CONTROLS = Study(
    "controls",
    "Controls (CNN@MNIST, sigma 2)",
    "What is left of WHALE's gain when its levels go to other devices, or come by chance; and what simpler ways to "
    "shorten a round gain. Replayed and random levels pay nothing for measuring Fisher information. The headline is "
    "WHALE uncapped.",
    CONTROLS_SHOWN,
    (
        Hours(MNIST, CONTROLS_SHOWN),
        Pairs("WHALE against each control", tuple(Pair(f"WHALE vs {c.label}", WHALE, c) for c in CONTROL_CELLS)),
        Pairs(
            "Capped and uncapped against HeteroFL",
            (
                peer_pair(MNIST, "whale", "heterofl", SPEEDUP_OVER_PEER["mnist"]["whale"]),
                Pair("WHALE capped vs HeteroFL", CONTROL_CELLS[-1], main_cell(MNIST, "heterofl")),
            ),
        ),
        Finals("Final accuracy", tuple((cell, None) for cell in CONTROLS_SHOWN)),
    ),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            (
                Panel(
                    "WHALE and its levels without its reasons",
                    MNIST,
                    (*cells_of(MNIST, ("whale",)), *CONTROL_CELLS[:2]),
                ),
                Panel("full width", MNIST, (*cells_of(MNIST, ("fedavg", "whale")), *CONTROL_CELLS[2:6])),
                Panel("fixed levels", MNIST, (*cells_of(MNIST, ("heterofl", "whale")), *CONTROL_CELLS[6:])),
            ),
        ),
    ),
)

_SLOW_LINKS = tuple(
    Table.of(name=name, mbps=mbps, power_w=power)
    for name, mbps, power in (("wifi5", 8.0, 1.3), ("lte", 2.0, 2.5), ("bluetooth", 1.0, 0.3))
)

WEATHER_SETTINGS = {
    "calm": (replace(MNIST, name="CNN@MNIST, calm", seeds=5, tier=3), (("weather", "calm"),)),
    "rough": (replace(MNIST, name="CNN@MNIST, rough", seeds=5, tier=3), (("weather", "rough"),)),
    "slow links": (
        replace(MNIST, name="CNN@MNIST, links ten times slower", seeds=3, tier=5, hours=4.5),
        (("weather.links", _SLOW_LINKS),),
    ),
}


def weather_cell(weather: str, method: str) -> Cell:
    """A method in a weather; the rolling and random ones come later and with fewer seeds."""
    if weather == "default":
        return main_cell(MNIST, method)
    setting, overrides = WEATHER_SETTINGS[weather]
    first = method in ("fedavg", "heterofl", "whale")
    return Cell(
        setting, method, LABELS[method], overrides, seeds=None if first else 3, tier=None if first else setting.tier + 2
    )


def weather_methods(weather: str) -> tuple[str, ...]:
    return ("fedavg", "heterofl", "whale") if weather == "slow links" else SEVEN


def weather_cells(weather: str) -> tuple[Cell, ...]:
    return tuple(weather_cell(weather, method) for method in weather_methods(weather))


WEATHERS = Study(
    "weathers",
    "CNN@MNIST in other weathers",
    "Calm: no background load. Rough: load slows computing by 4 instead of 2. And one setting bound by its uploads: "
    "links ten times slower.",
    tuple(cell for weather in WEATHER_SETTINGS for cell in weather_cells(weather)),
    tuple(Hours(setting, weather_cells(weather)) for weather, (setting, _) in WEATHER_SETTINGS.items()),
    (
        Accuracies(
            "accuracy",
            "Accuracy over virtual time, median and range of the seeds (in brackets: how many).",
            tuple(Panel(setting.name, setting, weather_cells(w)) for w, (setting, _) in WEATHER_SETTINGS.items()),
        ),
    ),
)

TUNED = (MNIST, HAR, CIFAR10, WIKITEXT2)

TUNING = Study(
    "tuning",
    "Tuning",
    "Scored on a tenth of the training data that is not trained on. Six settings for every method: "
    "three learning rates, each with two variants of its own: FedAvg 10 or 5 local iterations, the fixed methods two "
    "maps from kinds of device to levels, the adaptive ones U_th at two quantiles of the first utilities. "
    "All of them run with seed 100, the better two of each method with seed 101 too, and the better of these over both "
    "seeds is the winner. Better is: more seeds that reach the target and end at or above it, then the smaller "
    "geometric mean of times; where none does, the higher final accuracy. An adaptive setting counts only if it "
    "trains at most 0.7 of the parameters on average.",
    tuple(cell for setting in TUNED for cell in tuning_cells(setting)),
    tuple(TuningTable(setting) for setting in TUNED),
    later=lambda store: tuple(cell for s in TUNED for method in SEVEN for cell in finalists(store, s, method)),
)

STUDIES = {
    study.name: study
    for study in (
        TABLE1,
        TABLE2,
        TABLE3,
        TASK_PERF,
        FISHER,
        ABLATION,
        SENSITIVITY,
        HETEROGENEITY,
        THEOREM,
        CONTROLS,
        WEATHERS,
        TUNING,
    )
}

REPORTED = tuple(study for study in STUDIES.values() if study is not TUNING)
