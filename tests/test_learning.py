"""What the demo shows, asserted: longer runs on real (embedded) data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from whalefl.cli.options import experiment_of
from whalefl.engines import make_engine
from whalefl.execution import prepared
from whalefl.federation.methods import METHODS
from whalefl.federation.simulation import rounds_of
from whalefl.report.summary import Record, final_accuracy, time_to_target

pytestmark = pytest.mark.slow


def run(method: str, *pairs: str) -> list[Record]:
    experiment = experiment_of("digits", None, list(pairs), {"method": method})
    federation = prepared(experiment)
    rounds = rounds_of(federation, make_engine(experiment, federation.task))
    return [asdict(finished.record) for finished in rounds]


def test_adaptive_slices_reach_the_target_before_full_ones_and_end_no_worse() -> None:
    whale, fedavg = run("whale", "horizon_s=100.0"), run("fedavg", "horizon_s=100.0")
    sooner, later = time_to_target(whale, 0.85), time_to_target(fedavg, 0.85)
    assert sooner is not None and later is not None
    assert sooner["time_s"] < later["time_s"]
    assert final_accuracy(whale) > final_accuracy(fedavg) - 0.02


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_digits_with_iid_data(method: str) -> None:
    assert final_accuracy(run(method, "partition.sigma=10", "rounds=12")) > 0.8


def test_a_trace_slows_a_run_and_leaves_its_learning_alone(tmp_path: Path) -> None:
    slow = tmp_path / "slow.csv"
    slow.write_text("time_s,mbps\n0,1\n10,0\n20,2\n")
    groups = 'fleet.groups=[{{kind="JetsonNano",count=4{trace}}}]'
    plain = run("fedavg", "rounds=4", groups.format(trace=""))
    traced = run("fedavg", "rounds=4", groups.format(trace=f',trace="{slow}"'))
    assert traced[-1]["time_s"] > 2 * plain[-1]["time_s"]
    assert [r["accuracy"] for r in traced] == [r["accuracy"] for r in plain]
