"""Stacks share memory: nothing of one is left where another trains."""

from __future__ import annotations

import torch
from torch import nn

from conftest import made_up_task
from whalefl.federation.engine import PlainEngine
from whalefl.federation.methods import make_method
from whalefl.federation.rounds import open_round
from whalefl.federation.settings import Settings
from whalefl.federation.simulation import assemble, first_state
from whalefl.federation.stacks import Desk
from whalefl.federation.training import Training
from whalefl.fleet.devices import Fleet
from whalefl.fleet.weather import Weather
from whalefl.rng import Seeds


def test_a_stack_trains_alike_whoever_used_its_memory_before() -> None:
    task, training = made_up_task(), Training(iterations=3, batch=8, momentum=0.9)
    for method in ("prefix+whale", "random+whale"):
        federation = assemble(task, make_method(method), Fleet(), Weather(), Settings(training=training), Seeds.all(0))
        state, used = first_state(federation), PlainEngine(task, training)
        orders = open_round(federation, state).orders
        assert all(order.fisher_steps for order in orders)
        used.train(state.weights, orders)
        sums, outcomes = used.train(state.weights, orders[::-1])
        expected, reference = PlainEngine(task, training).train(state.weights, orders)
        assert torch.equal(sums.flat, expected.flat) and outcomes == reference


def test_a_desk_has_room_for_the_layout_of_each_tensor() -> None:
    desk = Desk(10)
    image = nn.Conv2d(3, 5, 3).weight.detach().to(memory_format=torch.channels_last)
    first, second = desk.like("weights", [torch.zeros(7), image])
    assert second.stride() == image.stride() and second.shape == image.shape
    second.copy_(image)
    first.fill_(1.0)
    assert torch.equal(second, image)
    (again,) = desk.like("weights", [torch.zeros(7)])
    assert again.data_ptr() == first.data_ptr()
    (other,) = desk.like("momentum", [torch.zeros(7)])
    assert other.data_ptr() != first.data_ptr()


def test_a_desk_for_a_model_has_room_for_it_whatever_comes_first() -> None:
    task = made_up_task()
    whole = list(task.initial_weights(0).values())
    desk = Desk(task.axes.count, len(task.axes.shapes))
    narrow = desk.like("weights", [weight[:1] for weight in whole])
    assert desk.like("weights", whole)[0].data_ptr() == narrow[0].data_ptr()
