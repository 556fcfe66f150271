"""The claims of the paper, each with the rule that decides it; docs/claims.md is written from here and from results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from whalefl.experiments.additions import weather_cell
from whalefl.experiments.cells import Cell
from whalefl.experiments.paper import (
    FINAL_ACCURACY,
    HOURS,
    SPEEDUP_OVER_FEDAVG,
    SPEEDUP_OVER_FEDAVG_BY_SIGMA,
    SPEEDUP_OVER_PEER,
)
from whalefl.experiments.protocol import (
    CIFAR10,
    LABELS,
    MNIST,
    MNIST_5,
    MNIST_10,
    PAIRS,
    SEVEN,
    SIGMAS,
    TASKS,
    WIKITEXT2,
    Setting,
)
from whalefl.experiments.published import SWEEPS, ablation_cells
from whalefl.experiments.reading import main_cell
from whalefl.experiments.store import Store
from whalefl.experiments.studies import cells_of
from whalefl.experiments.tables import NOT_RUN
from whalefl.experiments.verdicts import (
    CONFIRMED,
    MARGIN,
    REFUTED,
    TIED,
    UNDECIDED,
    WARM_UP,
    AheadEarly,
    Better,
    FasterWhereMore,
    Finding,
    FollowsFisher,
    Larger,
    LongerThan,
    MoreInTheMiddle,
    Restless,
    Smaller,
    SmallLargeSmall,
    Sooner,
    SoonerAndNoWorse,
    Unsteadier,
    Worse,
)
from whalefl.markdown import grid
from whalefl.report.statistics import COVERED
from whalefl.runs import write_atomic

WEATHERS = ("default", "calm", "rough")


class Rule(Protocol):
    def find(self, store: Store) -> Finding: ...


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its figure there if it has one, where it is tested, and the rule that decides it."""

    section: str
    sentence: str
    paper: str
    where: str
    rule: Rule


def claims() -> Iterator[Claim]:
    yield from _speed_claims()
    yield from _accuracy_claims()
    yield from _size_claims()
    yield from _ablation_claims()
    yield from _sensitivity_claims()
    yield from _heterogeneity_claims()
    yield from _theorem_claims()


def _places(method: str, *others: str) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
    """Every task, MNIST in every weather: task, name of the place, and the cells of these methods there."""
    for setting in TASKS:
        if setting is MNIST:
            for weather in WEATHERS:
                cells = tuple(weather_cell(weather, m) for m in (method, *others))
                yield setting.task, f"{setting.name}, {weather} weather", cells
        else:
            yield setting.task, setting.name, tuple(main_cell(setting, m) for m in (method, *others))


def _speed_claims() -> Iterator[Claim]:
    section = "Latency (Tables 1 and 3, figure task_perf)"
    for task, where, (whale, fedavg) in _places("whale", "fedavg"):
        paper = SPEEDUP_OVER_FEDAVG[task]
        shown = f"{paper:.1f}x"
        if task == MNIST.task:
            shown += f" (Table 3: {SPEEDUP_OVER_FEDAVG_BY_SIGMA[2]['whale']:.2f}x)"
        yield Claim(section, "WHALE reaches the target sooner than FedAvg", shown, where, Sooner(whale, fedavg, paper))
    for method, peer in PAIRS:
        for task, where, (adaptive, fixed) in _places(method, peer):
            paper = SPEEDUP_OVER_PEER[task][method]
            sentence = f"{LABELS[method]} reaches the target sooner than {LABELS[peer]}"
            yield Claim(section, sentence, f"{paper:.2f}x", where, Sooner(adaptive, fixed, paper))


def _accuracy_claims() -> Iterator[Claim]:
    section = "Final accuracy (Table 2)"
    for method, peer in PAIRS:
        for task, where, (adaptive, fixed) in _places(method, peer):
            gain = 100 * (FINAL_ACCURACY[task][method] - FINAL_ACCURACY[task][peer])
            sentence = f"{LABELS[method]} ends at a higher accuracy than {LABELS[peer]}"
            yield Claim(section, sentence, f"{gain:+.2f} points", where, Better(adaptive, fixed))
    for task, where, (whale, fedavg) in _places("whale", "fedavg"):
        loss = 100 * (FINAL_ACCURACY[task]["whale"] - FINAL_ACCURACY[task]["fedavg"])
        yield Claim(
            section,
            f"faster without sacrificing accuracy: sooner than FedAvg, and at most {100 * MARGIN:.0f} point lower",
            f"{SPEEDUP_OVER_FEDAVG[task]:.1f}x; {loss:+.2f} points",
            where,
            SoonerAndNoWorse(whale, fedavg),
        )


def _size_claims() -> Iterator[Claim]:
    section = "Sizes and Fisher information (figure fisher)"
    for weather in WEATHERS:
        whale, where = weather_cell(weather, "whale"), f"{MNIST.name}, {weather} weather"
        yield Claim(section, "small early, large in the middle, small late", "", where, SmallLargeSmall(whale))
        yield Claim(section, "sizes grow from early to the middle", "", where, MoreInTheMiddle(whale, 0))
        yield Claim(section, "sizes shrink from the middle to late", "", where, MoreInTheMiddle(whale, 2))
        yield Claim(
            section, "size follows Fisher information (trace over the slice)", "", where, FollowsFisher(whale, "all")
        )
        yield Claim(
            section,
            "size follows Fisher information (trace over the smallest slice, which does not grow with the size)",
            "",
            where,
            FollowsFisher(whale, "unit"),
        )


def _ablation_claims() -> Iterator[Claim]:
    section = "System against training efficiency (figure ablation)"
    for setting, (_, whale, system, training) in (
        (CIFAR10, ablation_cells(CIFAR10, 7)),
        (MNIST, ablation_cells(MNIST, 4, 5)),
    ):
        yield Claim(
            section,
            "WHALE reaches the target sooner than training efficiency only",
            "",
            setting.name,
            Sooner(whale, training),
        )
        yield Claim(
            section,
            "WHALE ends at a higher accuracy than system efficiency only",
            "",
            setting.name,
            Better(whale, system),
        )
        yield Claim(
            section, "system efficiency only is ahead of WHALE early on", "", setting.name, AheadEarly(system, whale)
        )


def _sensitivity_claims() -> Iterator[Claim]:
    section = "Sensitivity (figure sensitivity)"
    for setting in (MNIST, WIKITEXT2):
        low_beta, beta, high_beta = SWEEPS[setting.name]["beta"]
        short, window, long = SWEEPS[setting.name]["D"]
        low, medium, high = SWEEPS[setting.name]["U_th"]
        rules: tuple[tuple[str, Rule], ...] = (
            ("beta 1 converges slower than beta 2", Sooner(beta, low_beta)),
            ("beta 1 ends at a higher accuracy than beta 2", Better(low_beta, beta)),
            ("beta 5 is ahead of beta 2 early on", AheadEarly(high_beta, beta)),
            ("beta 5 ends at a lower accuracy than beta 2", Worse(high_beta, beta)),
            ("D 1 makes accuracy fluctuate more than D 10", Unsteadier(short, window)),
            ("D 1 makes sizes change more than D 10", Restless(short, window)),
            ("D 20 makes sizes change less than D 10", Restless(window, long)),
            ("D 10 converges sooner than D 1", Sooner(window, short)),
            ("D 10 converges sooner than D 20", Sooner(window, long)),
            ("D 20 impairs training: it ends at a lower accuracy than D 10", Worse(long, window)),
            ("a high U_th makes devices choose smaller slices than a medium one", Smaller(high, medium)),
            ("a low U_th makes devices choose larger slices than a medium one", Larger(low, medium)),
            ("a high U_th is ahead of a medium one early on", AheadEarly(high, medium)),
            ("a high U_th ends at a lower accuracy than a medium one", Worse(high, medium)),
            ("a low U_th converges slower than a medium one", Sooner(medium, low)),
            ("a low U_th ends at a higher accuracy than a medium one", Better(low, medium)),
        )
        for sentence, rule in rules:
            yield Claim(section, sentence, "", setting.name, rule)


def _heterogeneity_claims() -> Iterator[Claim]:
    section = "Data heterogeneity (Table 3)"
    for method in SEVEN:
        for more, less in ((MNIST, MNIST_5), (MNIST_5, MNIST_10)):
            cells, paper = (main_cell(more, method), main_cell(less, method)), HOURS[more.sigma or 0][method]
            yield Claim(
                section,
                f"(i) {LABELS[method]} takes longer with sigma {more.sigma} than with sigma {less.sigma}, both to "
                f"{100 * less.target:.0f} %",
                "",
                "CNN@MNIST",
                LongerThan(*cells, target=less.target),
            )
            yield Claim(
                section,
                f"as Table 3 prints it: {LABELS[method]} takes longer with sigma {more.sigma} to "
                f"{100 * more.target:.0f} % than with sigma {less.sigma} to {100 * less.target:.0f} %",
                f"{paper / HOURS[less.sigma or 0][method]:.2f}x",
                "CNN@MNIST",
                LongerThan(*cells),
            )
    for setting in SIGMAS:
        numbers = SPEEDUP_OVER_FEDAVG_BY_SIGMA[setting.sigma or 0]
        # What adapting gains over the fixed peers at sigma 2, and WHALE over FedAvg, stands under latency.
        if setting is not MNIST:
            for method, peer in PAIRS:
                yield _sooner_at(setting, method, peer, numbers[method] / numbers[peer])
        for method in SEVEN:
            if method != "fedavg" and (setting, method) != (MNIST, "whale"):
                yield _sooner_at(setting, method, "fedavg", numbers[method])


def _sooner_at(setting: Setting, method: str, reference: str, paper: float) -> Claim:
    return Claim(
        "Data heterogeneity (Table 3)",
        f"(ii) {LABELS[method]} reaches the target sooner than {LABELS[reference]}",
        f"{paper:.2f}x",
        f"CNN@MNIST, sigma {setting.sigma}",
        Sooner(main_cell(setting, method), main_cell(setting, reference), paper),
    )


def _theorem_claims() -> Iterator[Claim]:
    section = "Convergence (the theorem)"
    cells = cells_of(MNIST)
    yield Claim(section, "a larger |M*| converges in fewer rounds", "", MNIST.name, FasterWhereMore(cells, "least"))
    yield Claim(
        section,
        "larger regions trained (less of the model untouched) converge in fewer rounds",
        "",
        MNIST.name,
        FasterWhereMore(cells, "untouched"),
    )


_SEEDS, _COVERED = " / ".join(map(str, COVERED)), " / ".join(f"{100 * share:.0f}" for share in COVERED.values())
_LOSSES = " / ".join(f"{100 * (numbers['fedavg'] - numbers['whale']):.1f}" for numbers in FINAL_ACCURACY.values())

_TITLE = """# The paper's claims, and what we find

Written by `whalefl reproduce all --report-only --claims docs/claims.md` from the runs under `results/runs`; nothing is
typed by hand. [reproduction.md](reproduction.md) holds the protocol.
"""

_RULES = f"""## The rules

A speed-up (geometric mean over seeds of times to the target, paired) is confirmed if its whole 95 % interval
lies above 1 and refuted if it lies below; where some runs never reached the target the ratio is a bound, and a bound
decides only in its own direction. An accuracy is higher if the interval of the paired difference lies above 0, and
"not sacrificed" if it lies above -{100 * MARGIN:.0f} point. "Early on" compares accuracies averaged over the first
tenth of the horizon. Small early, large in the middle, small late: the share of parameters trained in the middle third
of the virtual time is above that of the first and of the last third. Size follows Fisher information if the rank
correlation over time between the share trained and the Fisher information of the D rounds before is above 0 (the trace
over the slice grows with the slice, so of that it is so by construction); convergence follows coverage if, over the
seven methods and without the {WARM_UP} rounds in which adaptive devices warm up, the rank correlation with fewer rounds
to the target (those that never reach it need the most) is above 0 and the methods differ in it (seven methods are few,
and they differ in more than coverage).
Everything else is not decidable: one seed or two decide nothing, nor do ratios of some seeds where in others neither
run reached the target. Intervals of few seeds cover less than they say: of normal values, those of {_SEEDS} seeds
hold the true mean in {_COVERED} % of cases instead of 95. Of three seeds an interval is their range, and one in four
claims that are neither true nor false would get a verdict: read those with care. After a speed-up, "less", "more" or
"compatible" says where our interval lies against the paper's figure; figures of the paper that are ratios of two of its
numbers are our division. The ratio of first crossings stands beside, since the rule for when a target is reached
credits steep curves early; it decides nothing, but where it would decide otherwise its verdict stands behind it. "At
most {100 * MARGIN:.0f} point lower" is our reading of "without sacrificing learning accuracy"; in the paper's own
Table 2 WHALE ends {_LOSSES} points below FedAvg.
"""


def claims_page(store: Store) -> str:
    """The whole of docs/claims.md."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    verdicts: dict[str, int] = {}
    depend = 0
    for claim in claims():
        found = claim.rule.find(store)
        verdicts[found.verdict] = verdicts.get(found.verdict, 0) + 1
        depend += found.depends
        crossing = found.by_crossing + (f": {found.otherwise}" if found.depends else "")
        rows.setdefault(claim.section, []).append(
            (
                *(claim.sentence, claim.where, claim.paper or "-"),
                *(found.figure, crossing, str(found.seeds or ""), found.verdict),
            )
        )
    order = [verdict for verdict in (CONFIRMED, REFUTED, UNDECIDED, TIED, NOT_RUN) if verdict in verdicts]
    overview = [
        (section, *(str(sum(line[-1] == verdict for line in lines) or "") for verdict in order))
        for section, lines in rows.items()
    ]
    overview.append(("all", *(str(verdicts[verdict]) for verdict in order)))
    header = ("claim", "where", "paper", "ours", "by first crossing", "seeds", "verdict")
    sections = [f"## {section}\n\n{grid([header, *lines])}" for section, lines in rows.items()]
    counted = grid([("verdicts", *order), *overview])
    return "\n".join(
        [_TITLE, counted, f"First crossings would decide {depend} of them otherwise.\n", _RULES, *sections]
    )


def write_claims(path: Path, store: Store) -> None:
    write_atomic(path, claims_page(store).encode())
