"""Every equation of the paper against numbers worked out by hand, and the map from labels to functions."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from whalefl.scheduling.fisher import FisherEntry, fisher_trace, mean_square, push
from whalefl.scheduling.levels import capped_level, normalised_utility, quantised_level
from whalefl.scheduling.utility import system_efficiency, training_efficiency, utility
from whalefl.subnet.aggregation import Contribution, PartialSums, count_devices
from whalefl.subnet.axes import Axes

LABELS = (
    "eq:fishertrace",
    "ResEffi",
    "TraEffi",
    "eq:SSUtilFunc",
    "eq:linear",
    "eq:quantization",
    "eq:min_max_W",
    "eq:HeteroFLaggre1",
    "eq:aggre",
)


def test_fisher_trace_is_batch_size_times_squared_norm_of_the_mean_gradient() -> None:
    # Two samples with gradients (3, 0) and (0, 4): the trace is (9 + 16) / 2 = 12.5. If the two signs of the scores
    # are equally likely, the mean gradient is (+-1.5, +-2), its squared norm 2.25 + 4 = 6.25, and 2 x 6.25 = 12.5.
    assert fisher_trace(6.25, 2) == 12.5


def test_system_efficiency_is_preferred_over_met_time() -> None:
    assert system_efficiency(preferred_s=3.0, transmission_s=0.5, computing_s=1.5) == 1.5


def test_training_efficiency_over_window_and_batches() -> None:
    # Rounds measured (1, 3) and (2, 4): mean squares 5 and 10, window mean 7.5; |B| = 10: 10 sqrt(7.5).
    window = (FisherEntry(1, 100, (1.0, 3.0), (0.0, 0.0)), FisherEntry(3, 7, (2.0, 4.0), (0.0, 0.0)))
    assert mean_square(window, "trace") == 7.5
    assert training_efficiency(10, 7.5) == pytest.approx(27.386127875258307)


def test_the_prefactor_is_the_number_of_batches_trained_on_not_measured() -> None:
    measured_twice = (FisherEntry(1, 1, (2.0, 2.0), (0.0, 0.0)),)
    measured_once = (FisherEntry(1, 1, (2.0,), (0.0,)),)
    efficiencies = {training_efficiency(10, mean_square(w, "trace")) for w in (measured_twice, measured_once)}
    assert efficiencies == {20.0}


def test_utility_is_training_times_system_to_the_beta() -> None:
    assert utility(training=20.0, system=1.5, beta=2.0) == 45.0
    assert utility(training=20.0, system=1.5, beta=0.0) == 20.0


def test_normalised_utility_is_linear_up_to_the_threshold() -> None:
    assert normalised_utility(10.0, 40.0) == 0.25
    assert normalised_utility(40.0, 40.0) == 1.0
    assert normalised_utility(41.0, 40.0) == 1.0


@pytest.mark.parametrize(
    ("normalised", "level"),
    [(0.0, 5), (0.199, 5), (0.2, 4), (0.399, 4), (0.4, 3), (0.6, 2), (0.799, 2), (0.8, 1), (0.9, 1), (1.0, 1)],
)
def test_quantised_level_with_five_levels(normalised: float, level: int) -> None:
    assert quantised_level(normalised, 5) == level


def test_quantised_level_on_every_edge_of_every_ladder() -> None:
    for levels in range(1, 40):
        for p in range(1, levels + 1):
            assert quantised_level((levels - p) / levels, levels) == p


def test_capped_level_never_exceeds_what_the_device_supports() -> None:
    assert capped_level(level=2, widest=3) == 3
    assert capped_level(level=4, widest=3) == 4
    assert capped_level(level=3, widest=3) == 3


def test_nested_aggregation_by_hand() -> None:
    # A vector of 4 with slices of 4, 2 and 1 coordinates (levels 1, 2, 3 with s = 1/2), M = 3 devices.
    # W^3: mean of all three = (1+4+7)/3; W^2 \ W^3: mean of two = (2+5)/2; W^1 \ W^2: the widest device alone.
    axes = Axes.of({"n": 4}, {"w": ("n",)})
    sums = PartialSums(axes)
    for values in ([1.0, 2.0, 3.0, 9.0], [4.0, 5.0], [7.0]):
        sums.add(Contribution({"n": np.arange(len(values))}), {"w": torch.tensor(values)})
    assert sums.average({"w": torch.zeros(4)}, count_devices(axes, sums.contributions))["w"].tolist() == [
        4.0,
        3.5,
        3.0,
        9.0,
    ]


def test_untouched_coordinates_keep_their_value_and_labels_count_owners_only() -> None:
    axes = Axes.of({"n": 2}, {"w": (3, "n")}, labels={"w": 0})
    sums = PartialSums(axes)
    sums.add(Contribution({"n": np.arange(1)}, owned=(0, 1)), {"w": torch.tensor([[2.0], [4.0], [100.0]])})
    sums.add(Contribution({"n": np.arange(2)}, owned=(1,)), {"w": torch.tensor([[50.0, 50.0], [6.0, 8.0], [9.0, 9.0]])})
    new = sums.average({"w": torch.full((3, 2), -1.0)}, count_devices(axes, sums.contributions))["w"]
    assert new.tolist() == [[2.0, -1.0], [5.0, 8.0], [-1.0, -1.0]]


def test_the_window_keeps_its_last_rounds() -> None:
    entries = [FisherEntry(level, 1, (float(level),), (0.0,)) for level in (1, 2, 3)]
    window: tuple[FisherEntry, ...] = ()
    for entry in entries:
        window = push(window, entry, 2)
    assert window == tuple(entries[1:])


def test_the_three_normalisations() -> None:
    entry = FisherEntry(level=2, parameters=4, trace=(8.0, 2.0), unit=(3.0, 1.0))
    assert entry.values("trace") == (8.0, 2.0)
    assert entry.values("mean") == (2.0, 0.5)
    assert entry.values("unit") == (3.0, 1.0)


def test_the_equation_map_names_functions_whose_docstrings_carry_the_label() -> None:
    text = (Path(__file__).parent.parent / "docs" / "equations.md").read_text(encoding="utf8")
    mapped = dict(re.findall(r"^\| `([^`]+)` \|[^|]*\| `([^`]+)` \|", text, flags=re.M))
    assert set(mapped) == set(LABELS)
    for label, place in mapped.items():
        module, _, name = place.partition(":")
        target = import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        assert label in (target.__doc__ or ""), f"{place} does not carry {label}"


def test_each_label_is_carried_by_one_function_only() -> None:
    source = Path(__file__).parent.parent / "src" / "whalefl"
    text = "\n".join(path.read_text(encoding="utf8") for path in source.rglob("*.py"))
    for label in LABELS:
        assert len(re.findall(rf"(?<![\w:]){re.escape(label)}(?!\w)", text)) == 1, label
