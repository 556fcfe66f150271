"""What we add to the paper's tables and figures: controls, other weathers, and the tuning behind all of them."""

from __future__ import annotations

from dataclasses import replace

from whalefl.config import preset
from whalefl.experiments.cells import Cell, Need, Overrides, Table
from whalefl.experiments.paper import SPEEDUP_OVER_PEER
from whalefl.experiments.pictures import Accuracies, Panel
from whalefl.experiments.protocol import CIFAR10, HAR, LABELS, MNIST, MNIST_5, MNIST_10, PAIRS, SEVEN, WIKITEXT2
from whalefl.experiments.reading import main_cell
from whalefl.experiments.studies import Study, cells_of, peer_pair
from whalefl.experiments.tables import Finals, Hours, Pair, Pairs
from whalefl.experiments.tuning import TuningTable, finalists, fixed_levels, tuning_cells


def control(method: str, label: str, like: str, overrides: Overrides = (), need: Need | None = None) -> Cell:
    return Cell(MNIST, method, label, overrides=overrides, like=like, need=need, seeds=5, tier=3)


WHALE = main_cell(MNIST, "whale")

CAPS = (1, 2, 3, 4, 5)
"""What each kind of device is taken to support at most, the fastest first. (Tuning gave fixed methods wider levels.)"""

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
    control("heterofl", "HeteroFL at levels 1 2 3 4 5", "heterofl", fixed_levels(CAPS)),
    control("whale", "WHALE capped at these levels", "whale", fixed_levels(CAPS, "widest_level")),
)

AGAINST_CONTROLS = tuple(Pair(f"WHALE vs {cell.label}", WHALE, cell) for cell in CONTROL_CELLS)

CAPPED = Pair("WHALE capped vs HeteroFL at the same levels", *CONTROL_CELLS[:-3:-1])

AT_ONE_RATE = tuple(
    Cell(
        setting,
        method,
        f"{LABELS[method]}, WHALE's learning rate",
        overrides=(("training.lr", preset("mnist/whale")["training"]["lr"]),),
        seeds=3,
        tier=3,
    )
    for setting in (MNIST_5, MNIST_10)
    for method in ("fedavg", "heterofl", "fedrolex")
)
"""Tuned at sigma 2, these train with larger steps than the adaptive methods do."""

EXTENSIONS = {"fedavg": "whale"} | {peer: whale for whale, peer in PAIRS}
"""The adaptive method to compare each other one with."""

CONTROLS_SHOWN = (*cells_of(MNIST, ("fedavg", "heterofl", "whale")), *CONTROL_CELLS)

CONTROLS = Study(
    "controls",
    "Controls (CNN@MNIST)",
    "What is left of WHALE's gain when its levels go to other devices, or come by chance; and what simpler ways to "
    "shorten a round gain. Replayed and random levels pay nothing for measuring Fisher information. The headline is "
    "WHALE uncapped. With five and ten classes a device, the methods whose learning rate differs from WHALE's are run "
    "with WHALE's too.",
    (*CONTROLS_SHOWN, *AT_ONE_RATE),
    (
        Hours(MNIST, CONTROLS_SHOWN),
        Pairs("WHALE against each control", AGAINST_CONTROLS),
        Pairs(
            "Capped and uncapped against HeteroFL",
            (peer_pair(MNIST, "whale", "heterofl", SPEEDUP_OVER_PEER["mnist"]["whale"]), CAPPED),
        ),
        Pairs(
            "At one learning rate",
            tuple(
                Pair(f"{LABELS[EXTENSIONS[c.method]]} vs {c.label}", main_cell(c.setting, EXTENSIONS[c.method]), c)
                for c in AT_ONE_RATE
            ),
        ),
        Finals("Final accuracy", tuple((cell, None) for cell in CONTROLS_SHOWN), gains=(*AGAINST_CONTROLS, CAPPED)),
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
