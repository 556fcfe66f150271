"""Every table and figure of the paper, as one study each."""

from __future__ import annotations

from whalefl.experiments.cells import Cell, Need, Overrides
from whalefl.experiments.paper import FINAL_ACCURACY, HOURS, SPEEDUP_OVER_FEDAVG, SPEEDUP_OVER_FEDAVG_BY_SIGMA
from whalefl.experiments.pictures import Accuracies, Bars, CoverageCurves, FinalDots, FisherAndSize, Panel
from whalefl.experiments.protocol import CIFAR10, LABELS, MNIST, PAIRS, SEVEN, SIGMAS, TASKS, WIKITEXT2, Setting
from whalefl.experiments.reading import main_cell
from whalefl.experiments.studies import Study, cells_of, fedavg_pair, peer_pairs, task_cells
from whalefl.experiments.tables import Finals, Hours, Pair, Pairs
from whalefl.experiments.theorem import CoverageTable
from whalefl.experiments.trajectories import TrajectoryTable

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

FINALS = tuple((main_cell(s, m), FINAL_ACCURACY[s.task][m]) for s in TASKS for m in SEVEN)

TABLE2 = Study(
    "table2",
    "Table 2: final accuracy",
    "The mean over the last tenth of the virtual time that every method gets. The paper's last row prints WHALERolex "
    "where it must mean WHALEDropout.",
    task_cells(),
    (
        Finals(
            "Final accuracy",
            FINALS,
            tuple(
                Pair(
                    f"{LABELS[whale]} vs {LABELS[peer]}",
                    main_cell(s, whale),
                    main_cell(s, peer),
                    FINAL_ACCURACY[s.task][whale] - FINAL_ACCURACY[s.task][peer],
                )
                for s in TASKS
                for whale, peer in PAIRS
            ),
        ),
    ),
    (FinalDots("finals", "Final accuracies: ours with their intervals, and the paper's.", FINALS),),
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
    (CoverageCurves("coverage", "Coverage over virtual time, mean of the seeds.", cells_of(MNIST)),),
)
