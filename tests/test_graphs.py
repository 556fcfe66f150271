"""The GPU engine against the plain one; skipped where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import torch

from whalefl.errors import Diverged
from whalefl.federation.engine import PlainEngine
from whalefl.federation.methods import make_method
from whalefl.federation.rounds import close_round, open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, first_state, simulate
from whalefl.federation.training import Training
from whalefl.fleet.devices import Fleet
from whalefl.fleet.weather import Weather
from whalefl.rng import Seeds
from whalefl.scheduling.policies import Whale
from whalefl.tasks.digits import digits
from whalefl.tasks.partition import Partition
from whalefl.tasks.task import Examples, Task
from whalefl.tasks.transformer import Sizes, Transformer, transformer_axes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

TRAINING = Training(iterations=4, batch=8, lr=0.02)
SETTINGS = Settings(rounds=4, training=TRAINING)


def equal_rounds(here: Task, method: str, settings: Settings) -> set[int]:
    """Train four rounds on both engines, which are to agree; the levels met."""
    from whalefl.federation.graphs import GraphEngine

    whale = make_method(method, Whale(quantile=0.9))
    federation = assemble(here, whale, Fleet(), Weather(), settings, Seeds.all(1))
    plain, graphs = PlainEngine(here, TRAINING), GraphEngine(here.to("cuda"), TRAINING, "fp32")
    state, levels = first_state(federation), set[int]()
    for _ in range(4):
        opened = open_round(federation, state)
        levels |= {order.level for order in opened.orders}
        sums, outcomes = plain.train(state.weights, opened.orders)
        on_gpu = {name: weight.cuda() for name, weight in state.weights.items()}
        gpu_sums, gpu_outcomes = graphs.train(on_gpu, opened.orders)
        after, _ = close_round(federation, state, opened, sums, outcomes)
        ours, reference = (torch.cat([t.cpu().flatten() for t in s.sums.values()]) for s in (gpu_sums, sums))
        assert (ours - reference).norm() < 1e-5 * reference.norm()
        found = {outcome.device: outcome for outcome in gpu_outcomes}
        errors = [0.0]
        for outcome in outcomes:
            assert found[outcome.device].loss == pytest.approx(outcome.loss, rel=1e-4)
            mine, other = outcome.fisher, found[outcome.device].fisher
            if mine is not None and other is not None:
                assert other.parameters == mine.parameters
                pairs = zip((*mine.trace, *mine.unit), (*other.trace, *other.unit), strict=True)
                errors += [abs(b / a - 1) for a, b in pairs]
        # A draw on the edge between two labels may fall to the other side, so a few values may differ, most may not.
        assert median(errors) < 1e-3 and max(errors) < 0.2
        state = after
    return levels


@pytest.mark.parametrize("method", ["whale", "whaledropout", "whalerolex", "fedavg"])
def test_a_round_on_the_gpu_equals_the_plain_engine(method: str) -> None:
    levels = equal_rounds(digits(), method, SETTINGS)
    assert method == "fedavg" or len(levels) >= 3


@pytest.mark.parametrize("method", ["whale", "whaledropout"])
@pytest.mark.parametrize("filling", [1, 2**24])
def test_rounds_of_several_runs_at_once_are_as_those_of_each(
    method: str, filling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whalefl.federation.graphs import GraphEngine

    monkeypatch.setattr("whalefl.federation.graphs._FILLING", filling)
    task, whale = digits().to("cuda"), make_method(method, Whale(quantile=0.9))
    runs = [assemble(task, whale, Fleet(), Weather(), SETTINGS, Seeds.all(seed)) for seed in (1, 2, 3)]
    states = [first_state(run) for run in runs]
    alone, together = (GraphEngine(task, TRAINING, "fp32") for _ in range(2))
    for _ in range(3):
        opened = [open_round(run, state) for run, state in zip(runs, states, strict=True)]
        answers = together.train_all([(s.weights, o.orders) for s, o in zip(states, opened, strict=True)])
        for number, answer in enumerate(answers):
            assert not isinstance(answer, Diverged)
            sums, outcomes = alone.train(states[number].weights, opened[number].orders)
            assert (answer[0].flat - sums.flat).norm() < 1e-5 * sums.flat.norm()
            losses = {outcome.device: outcome.loss for outcome in outcomes}
            assert {o.device: o.loss for o in answer[1]} == pytest.approx(losses, rel=1e-4)
            states[number], _ = close_round(runs[number], states[number], opened[number], sums, outcomes)


def words_task() -> Task:
    """Texts over more words than torch's own losses are used for, and a small Transformer without dropout."""
    sizes = Sizes(words=5000, length=8, model=32, heads=4, hidden=64, layers=1, dropout=0.0)
    rng = np.random.default_rng(0)
    tokens = [torch.tensor(rng.zipf(1.3, (count, sizes.length)) % sizes.words) for count in (400, 40)]
    return Task(
        name="words",
        axes=transformer_axes(sizes),
        build=lambda shape: Transformer(shape, sizes),
        train=Examples(tokens[0], tokens[0]),
        test=Examples(tokens[1], tokens[1]),
        classes=sizes.words,
        prepare=lambda tokens: tokens,
        masked=lambda tokens: tokens == 0,
        groups=np.arange(400),
    )


@pytest.mark.parametrize("filling", [1, 2**24])  # in lanes, and each in memory of its own
def test_losses_over_many_words_equal_the_plain_engine(filling: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whalefl.federation.graphs._FILLING", filling)
    assert len(equal_rounds(words_task(), "whale", replace(SETTINGS, partition=Partition(kind="contiguous")))) >= 3


def on_gpu(task: Task, precision: str, rounds: int) -> list[float | None]:
    from whalefl.federation.graphs import GraphEngine

    engine = GraphEngine(task, TRAINING, precision)
    settings = replace(SETTINGS, rounds=rounds)
    run = simulate(task, make_method("whale"), settings=settings, seeds=Seeds.all(2), engine=engine)
    return [finished.record.accuracy for finished in run]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_whole_runs_learn_in_every_precision(precision: str) -> None:
    accuracies = on_gpu(digits().to("cuda"), precision, 25)
    assert accuracies[-1] is not None and accuracies[-1] > 0.7
