"""The benchmark: its yardstick trains as the engine does, its floor counts right, and what it measures can be read."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import made_up_task
from whalefl.bench.floor import Rate, best_rates, floor_s, round_flops, step_flops
from whalefl.bench.measuring import measure
from whalefl.bench.memory import MemoryResult, MemoryRow, measure_memory, read_memory, write_memory
from whalefl.bench.processes import Memory, Watch, tree_memory
from whalefl.bench.results import Machine, Result, read_results, write_results
from whalefl.bench.scenarios import SCENARIOS, Scenario, orders_of, random_task
from whalefl.bench.tables import caption, cells, header, memory_cells, memory_header, parts_cells, parts_header
from whalefl.bench.timing import Timing, alternate, ratio
from whalefl.bench.variants import VARIANTS, rounds_by
from whalefl.errors import WhaleflError
from whalefl.federation.engine import PlainEngine
from whalefl.federation.methods import make_method
from whalefl.federation.rounds import open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, first_state
from whalefl.federation.training import Training
from whalefl.fleet.devices import Fleet
from whalefl.fleet.weather import Weather
from whalefl.markdown import grid
from whalefl.rng import Seeds
from whalefl.subnet.axes import Axes
from whalefl.tasks.costs import level_costs
from whalefl.tasks.task import Examples, Shape, Task
from whalefl.values import Ladder

ROOT = Path(__file__).parent.parent
WHALEFL = str(Path(sys.executable).parent / "whalefl")
TINY = Scenario("tiny", (1, 0, 0, 1, 2), batch=4, iterations=2, fisher=1)
WORKERS = MemoryResult(
    engine="workers",
    command="whalefl bench --memory",
    rounds=3,
    model_mb=6.0,
    activations_mb=10.0,
    loop_mb=40.0,
    fork_mb=12.0,
    levels=5,
    workers=2,
    rows=(MemoryRow(20, 20, 5, 300.0, 1.0, 200.0, 20.0), MemoryRow(2020, 20, 24, 300.0, 5.0, 220.0, 20.0)),
)


def script(path: str) -> object:
    """A module that is no part of the package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("masked", [True, False])
def test_the_plain_loop_trains_as_the_engine_does(masked: bool) -> None:
    # One mini-batch a client, so that the order in which a DataLoader shuffles does not matter.
    task, training = made_up_task(), Training(iterations=1, batch=8, lr=0.05, masked_logits=masked)
    settings = Settings(training=training)
    federation = assemble(task, make_method("heterofl"), Fleet(), Weather(), settings, Seeds.all(0))
    state = first_state(federation)
    orders = open_round(federation, state).orders
    assert {order.level for order in orders} == {1, 2, 3, 4, 5}
    threads = torch.get_num_threads()
    expected = rounds_by(PlainEngine(task, training), task)(state.weights, orders)
    trained = script("benchmarks/plain_loop.py").PlainLoop(task, training).round(state.weights, orders)  # type: ignore[attr-defined]
    assert torch.get_num_threads() == threads
    assert trained.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-4, atol=1e-6)
        assert name.endswith("conv.bias") or not torch.equal(weight, state.weights[name])


class OneLayer(nn.Module):
    """One convolution and nothing else that counts."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean(dim=(2, 3))


def test_flops_of_one_layer_are_those_counted_by_hand() -> None:
    examples = Examples(torch.zeros(4, 2, 5, 7), torch.zeros(4, dtype=torch.int64))
    axes = Axes.of({}, {"conv.weight": (3, 2, 3, 3), "conv.bias": (3,)})
    task = Task("one", axes, lambda shape: OneLayer(3), examples, examples, 3, lambda x: x)
    products = 5 * 7 * 3 * 2 * 3 * 3  # places x outputs x inputs x kernel
    flops = step_flops(task, Shape({}))
    assert flops.forward == 2 * products
    assert flops.backward == 2 * products  # that of the weights; nobody asks for that of the inputs


def test_flops_of_a_round_count_every_client_and_one_more_backward_for_a_measurement() -> None:
    task = random_task("mnist", 40)
    costs = [cost.flops for cost in level_costs(task, Ladder())]
    unmeasured = replace(TINY, fisher=0)
    trained = 8 * (costs[0] + costs[3] + 2 * costs[4])
    assert round_flops(task, orders_of(unmeasured, task)) == pytest.approx(trained)
    steps = [step_flops(task, Shape({axis: n // k for axis, n in task.axes.sizes.items()}, 1 / k)) for k in (1, 8, 16)]
    extra = 4 * (steps[0].backward + steps[1].backward + 2 * steps[2].backward)
    assert round_flops(task, orders_of(TINY, task)) == pytest.approx(trained + extra)


def test_the_floor_is_that_of_the_precision_on_all_threads() -> None:
    rates = (Rate("fp32", 1, 10.0), Rate("fp32", 2, 20.0), Rate("bf16", 2, 40.0))
    assert floor_s(100.0, rates, "fp32") == 5.0
    assert floor_s(100.0, rates, "bf16") == 2.5
    busy = (Rate("fp32", 1, 11.0), Rate("fp32", 2, 12.0), Rate("bf16", 2, 13.0))
    assert [rate.flops_per_s for rate in best_rates(rates, busy)] == [11.0, 20.0, 40.0]


def test_turns_alternate_and_the_first_is_not_counted() -> None:
    heard: list[str] = []
    timings = alternate(
        {"a": lambda: heard.append("a"), "b": lambda: heard.append("b")}, 2, lambda n: heard.append(str(n))
    )
    assert heard == ["0", "a", "b", "1", "a", "b", "2", "a", "b"]
    assert [len(timing.seconds) for timing in timings.values()] == [2, 2]
    assert Timing(9.0, (1.0, 3.0, 2.0)).median_s == 2.0
    # A machine that is twice as slow in one turn is so for both.
    assert ratio([2.0, 4.0, 2.0], [1.0, 2.0, 4.0]) == 2.0


def test_orders_give_every_client_its_own_classes_and_examples() -> None:
    for scenario in SCENARIOS["cpu"].values():
        task = random_task(scenario.task, scenario.samples)
        orders = orders_of(scenario, task)
        assert len(orders) == sum(scenario.clients)
        for order in orders:
            labels = task.train.targets[torch.from_numpy(order.batches)]
            assert set(labels.unique().tolist()) <= set(order.labels or ())
    cuda = SCENARIOS["cuda"]["mixed"]
    orders = orders_of(cuda, random_task(cuda.task, cuda.samples))
    assert {len(order.fisher_steps) for order in orders} == {2}


@pytest.fixture(scope="module")
def result() -> Result:
    plain = VARIANTS["cpu"]["plain"]
    twice = [plain, replace(plain, name="again", precision="bf16")]
    return measure(TINY, twice, repeats=2, device="cpu", command="whalefl bench")


def test_a_measurement_holds_what_follows_from_its_seconds(result: Result) -> None:
    first, second = result.rows
    assert first.ratio == 1.0 and len(second.seconds) == 2
    assert first.samples_per_s == pytest.approx(32 * first.rounds_per_s)
    assert first.floor_s == pytest.approx(result.flops / result.rates[1].flops_per_s)
    assert second.floor_s == pytest.approx(result.flops / result.rates[2].flops_per_s)
    assert first.floor_share == pytest.approx(first.floor_s / first.median_s)
    assert "2 at width 1/16" in result.description and "Fisher information on 1" in caption(result)
    table = grid([header(result), *cells(result)]).splitlines()
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1


def test_results_are_read_as_they_were_written_and_others_stay(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "new" / "cpu.json"
    gpu = replace(result, scenario="other", machine=Machine("p", 1, "a GPU", "2"))
    write_results(path, [result, gpu])
    again = replace(result, command="another command")
    write_results(path, [again])
    assert read_results(path) == [again, gpu]
    assert json.loads(path.read_text())["schema"] == 1
    path.write_text('{"results": [{}]}')
    with pytest.raises(WhaleflError, match="cpu.json cannot be read"):
        read_results(path)


def test_memory_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_memory(tmp_path / "memory.json", [WORKERS])
    assert read_memory(tmp_path / "memory.json") == [WORKERS]
    assert WORKERS.models_mb == 42.0 and WORKERS.training_mb == 7 * 40.0
    assert len(memory_cells(WORKERS)[0]) == len(memory_header())
    assert len(parts_cells(WORKERS)[0]) == len(parts_header(WORKERS)) == 3


def test_the_parts_of_memory_add_up_to_what_was_measured() -> None:
    few, many = WORKERS.rows
    assert WORKERS.client_kb == pytest.approx(2.0)
    for row in (few, many):
        assert sum(WORKERS.parts(row).values()) == pytest.approx(row.data_mb)
    assert WORKERS.shape_mb == pytest.approx((20.0 - 4.0) / 19)
    models, loops, forks, clients = 10 * 6.0, 2 * 40.0, 2 * 12.0, 0.04
    assert WORKERS.parts(few)["what is left"] == pytest.approx(200.0 - models - loops - forks - clients)
    plain = replace(WORKERS, engine="plain", workers=1, rows=(few,))
    assert plain.client_kb == plain.shape_mb == 0.0
    assert plain.parts(few)["what is left"] == pytest.approx(200.0 - 4 * 6.0 - 40.0)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_memory_is_measured_of_a_process_and_its_workers() -> None:
    result = measure_memory("workers", (20,), 1, "whalefl bench --memory", loops=1)
    (row,) = result.rows
    assert row.shapes == 5 and row.cohort == 20
    assert 0 < row.assembled_mb < row.data_mb
    # The least: the global model, its age and copy, the sums of two workers, and the weights and momentum of one.
    assert row.data_mb > 9 * result.model_mb
    assert result.loop_mb > 3 * result.model_mb
    assert row.data_mb < result.training_mb


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_memory_and_processor_time_of_children_count_as_ones_own() -> None:
    alone, watch = tree_memory(os.getpid()), Watch.start()
    hog = "held = bytearray(b'x') * 200_000_000; print(flush=True); sum(range(10**8)); input()"
    with subprocess.Popen([sys.executable, "-c", hog], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = tree_memory(os.getpid())
        time.sleep(1)
        assert watch is not None
        assert 0 <= watch.others() <= 1 and replace(watch, own_s=watch.own_s + 100).others() > 1
        child.kill()
    assert 190 < both.data_mb - alone.data_mb < 300
    assert tree_memory(child.pid) == Memory(0.0, 0.0)


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WHALEFL, "bench", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_the_command_prints_a_table_and_leaves_a_file(tmp_path: Path) -> None:
    options = ("--scenario", "mixed", "--variants", "plain,plain-loop", "--repeats", "1", "--iterations", "1")
    done = bench(*options, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "x plain-loop" in done.stdout and "repeat with     whalefl bench --scenario mixed" in done.stdout
    (found,) = read_results(tmp_path / "runs" / "bench" / "cpu.json")
    assert [row.variant for row in found.rows] == ["plain-loop", "plain"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--scenario", "mied"),
            "whalefl: scenario is 'mied'; it must be one of mixed, mixed-measured, full, narrow (did you mean",
        ),
        (("--variants", "graphs"), "whalefl: variants is 'graphs'; it must be one of plain-loop, plain,"),
        (("--repeats", "0"), "whalefl: repeats is 0; it must be at least 1"),
        (("--iterations", "0"), "whalefl: iterations is 0; it must be at least 1"),
        (("--device", "tpu"), "whalefl: device is 'tpu'; it must be 'cpu', or 'cuda' where there is a GPU"),
        (
            ("--memory", "--variants", "plain-loop"),
            "whalefl: variants is 'plain-loop'; it must be one of plain, workers",
        ),
    ],
)
def test_mistakes_are_one_sentence(options: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = bench(*options, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def test_the_page_shows_what_was_measured() -> None:
    written = (ROOT / "docs" / "performance.md").read_text(encoding="utf8")
    page = script("benchmarks/performance_page.py").page()  # type: ignore[attr-defined]
    assert written == page, "run: python benchmarks/performance_page.py"
