"""A device: it holds model, data and memory between messages, decides its level, and answers.

Nothing here knows of Flower or sockets: a message and its tensors go in, a message and tensors come out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from whalefl.federation.evaluation import batch_norms, calibration_inputs, observed_moments, score
from whalefl.federation.local_training import train_slice
from whalefl.federation.rounds import DeviceState, Federation, Member, choose_level, make_order
from whalefl.federation.stacks import resident
from whalefl.fleet.knowledge import Knowledge
from whalefl.fleet.latency import expected_delay, memory_level
from whalefl.flower import probes
from whalefl.flower.checks import check_piece
from whalefl.flower.handshake import check_identity, identity_of
from whalefl.flower.memory import Memory, load_memory, save_memory
from whalefl.flower.messages import (
    Ask,
    Gather,
    Gathered,
    Hello,
    Identity,
    Judge,
    Judged,
    Train,
    Trained,
    Welcome,
    Wish,
)
from whalefl.flower.parties import test_share
from whalefl.flower.refusal import Refused
from whalefl.flower.stopwatch import LINK_FILE, read_transfers
from whalefl.flower.terms import Deployment
from whalefl.rng import stream
from whalefl.scheduling.fisher import push
from whalefl.tasks.task import Examples, Shape
from whalefl.values import Conditions

MEMORY = "memory.json"
_ASSUMED_MBPS = 10.0
"""What a link is taken for until it has been measured."""


@dataclass(frozen=True)
class Received:
    """What is known of a message's way here: its id, its size in bytes, and when the device got hold of it."""

    message: str
    size: int
    at_s: float


class Resident:
    """One device of a federation, its memory in `folder`."""

    def __init__(self, deployment: Deployment, federation: Federation, index: int, folder: Path) -> None:
        self.deployment, self.federation, self.folder = deployment, federation, folder
        self.identity: Identity = identity_of(deployment, federation.task.axes)
        self.memory: Memory = load_memory(folder / MEMORY, deployment.fingerprint)
        self.member: Member = federation.members[index]
        if self.memory.curve is None:
            self._remember(curve=probes.measured_curve(federation, self.member))
        self.member = replace(self.member, device=replace(self.member.device, curve=self.memory.curve, slowdown=1.0))
        self._models: dict[tuple[float, ...], nn.Module] = {}
        self._judged: tuple[int, nn.Module] | None = None
        self.greeted = False
        """Whether a server introduced itself since this device was started; before that it gets nothing else."""

    def _remember(self, **changes: object) -> None:
        self.memory = replace(self.memory, **changes)  # type: ignore[arg-type]
        save_memory(self.folder / MEMORY, self.memory)

    def hello(self, message: Hello, received: Received) -> Welcome:
        """Introduce the device, if the server speaks of the same federation."""
        check_identity(self.identity, message.identity, "the server")
        self.greeted = True
        transfers = read_transfers(self.folder / LINK_FILE)
        rate = probes.link_mbps(transfers, received.message, received.size, 0)
        if rate is not None and self.memory.nominal_mbps is None:
            self._remember(nominal_mbps=rate)
        share, owners = self.member.share, self.federation.settings.aggregation.label_ownership
        return Welcome(
            identity=self.identity,
            device=self.member.device.index,
            examples=len(share.indices),
            owned=share.owned if owners else None,
            wish=self.choose(message.ask),
        )

    def choose(self, ask: Ask) -> Wish:
        """The device half of the policy, on what the device measured itself."""
        known = self._conditions()
        expected = [
            expected_delay(self.federation.settings.latency, self.member.device, work, known)
            for work in self.member.works
        ]
        window = self.memory.after.window
        choice = choose_level(self.federation, ask.announcement, self.member, window, known, expected)
        above = None if choice.utility is None or ask.trial is None else choice.utility > ask.trial
        self._wished(ask.announcement.round, choice.level)
        return Wish(choice.level, expected[-1].total_s, above)

    def _wished(self, round: int, level: int) -> None:
        latest = {number: old for number, old in self.memory.wishes.items() if round - 2 < number < round}
        self._remember(wishes={**latest, round: level})

    def _conditions(self) -> Conditions:
        """What the device believes of the coming round: its own past rounds, and the load of others right now."""
        knowledge = self.memory.after.knowledge
        nominal = self.memory.nominal_mbps or _ASSUMED_MBPS
        return Conditions(
            link="measured",
            nominal_mbps=nominal,
            rate_mbps=nominal * knowledge.quality,
            slowdown=knowledge.slowdown * probes.load_slowdown(torch.get_num_threads()),
            free_memory_mb=probes.free_memory_mb(),
        )

    def train(
        self, message: Train, piece: Mapping[str, Tensor], received: Received
    ) -> tuple[Trained, dict[str, Tensor]]:
        """Train the slice, remember what was learnt, and choose for the next round."""
        level, wished = message.level, self.memory.wishes.values()
        if wished and level not in wished:  # the latest choice may have been lost on its way, then it is the one before
            chosen = " and ".join(map(str, wished))
            raise Refused(f"level {level} was ordered for round {message.round}; this device had chosen {chosen}")
        load = probes.load_slowdown(torch.get_num_threads())
        own = self.memory.state_for(message.round)
        order = make_order(self.federation, message.round, self.member, own.consumed, level)
        model = self._model(Shape.of(order.plan, order.width))
        loaded(model, piece)
        start = time.perf_counter()
        outcome = train_slice(self.federation.task, model, self.federation.settings.training, order)
        computing_s = time.perf_counter() - start
        window = own.window
        if outcome.fisher is not None:
            window = push(window, outcome.fisher, self.federation.method.policy.window)
        knowledge = self._learnt(own.knowledge, message, received, computing_s / load)
        after = DeviceState(window, knowledge, own.consumed + order.batches.size)
        # The server may order this level again, should the answer to it be lost.
        self._remember(round=message.round, before=own, after=after, wishes={message.round: level})
        wish = self.choose(message.ask)
        trained = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._remember(sent_bytes=received.size, held_s=time.monotonic() - received.at_s)
        return Trained(message.round, level, outcome.loss, computing_s, wish), trained

    def _learnt(self, knowledge: Knowledge, message: Train, received: Received, unloaded_s: float) -> Knowledge:
        """What a round taught the device of its speed and its link; the load of others is measured apart."""
        memory, work = self.memory, self.member.works[message.level - 1]
        transfers = read_transfers(self.folder / LINK_FILE)
        rate = probes.link_mbps(transfers, received.message, received.size, memory.sent_bytes)
        if rate is None and not transfers.message:
            rate = probes.told_mbps(message.exchange_s, memory.held_s, 2 * memory.sent_bytes)
        if rate is not None and memory.nominal_mbps is None:
            self._remember(nominal_mbps=rate)
        nominal = self.memory.nominal_mbps
        quality = knowledge.quality if rate is None or nominal is None else rate / nominal
        idle_s = self.member.device.computing_s(work.flops, work.samples)
        return knowledge.learn(self.federation.settings.latency, quality, unloaded_s / idle_s)

    def _model(self, shape: Shape) -> nn.Module:
        key = (*shape.sizes.values(), shape.ratio)
        if key not in self._models:
            self._models[key] = resident(self.federation.task.build(shape), torch.device("cpu")).train()
        return self._models[key]

    def gather(self, message: Gather, tensors: Mapping[str, Tensor]) -> tuple[Gathered, dict[str, Tensor]]:
        """The sums that the batch norms of the whole model need, over some of the device's training samples."""
        task, share = self.federation.task, self.member.share
        if not self._can_run_everything():
            return Gathered(message.round, False, {}), {}
        if message.number == 1:
            self._judged = (message.round, loaded(task.build(task.full), tensors).eval())
        else:
            set_statistics(self._gathered(message.round), tensors)
        most, seed = self.deployment.experiment.evaluation.calibration, self.federation.seeds.training
        chosen = stream(seed, "calibration", self.member.device.index).permutation(share.indices)[:most]
        inputs = calibration_inputs(task, chosen, slice(None))
        moments = observed_moments(self._gathered(message.round), inputs)
        sums = {f"{name}/total": m.total for name, m in moments.items()}
        sums |= {f"{name}/squares": m.squares for name, m in moments.items()}
        return Gathered(message.round, True, {name: m.count for name, m in moments.items()}), sums

    def _can_run_everything(self) -> bool:
        fits = memory_level(self.member.works, probes.free_memory_mb()) == 1
        return fits and self.member.profile.widest_level == 1

    def _gathered(self, round: int) -> nn.Module:
        if self._judged is None or self._judged[0] != round:
            raise Refused(f"no model of round {round} was sent to be judged")
        return self._judged[1]

    def judge(self, message: Judge, statistics: Mapping[str, Tensor]) -> Judged:
        """Score the gathered model on the device's own test data."""
        model = self._gathered(message.round)
        set_statistics(model, statistics)
        task = replace(self.federation.task, test=self._own_test())
        result, predictions = score(task, model), task.test.targets.numel()
        if not isfinite(result.loss):
            raise Refused(f"the test loss is {result.loss}")
        return Judged(message.round, predictions, round(result.accuracy * predictions), result.loss * predictions)

    def _own_test(self) -> Examples:
        """Its part of the test set where devices hold shares of one data set, or all of its own."""
        test = self.federation.task.test
        if self.deployment.terms.data == "own":
            return test
        mine = torch.from_numpy(test_share(self.federation, self.member.device.index))
        return Examples(test.inputs[mine], test.targets[mine])


def loaded(model: nn.Module, piece: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights in it; raises unless they are exactly its own."""
    parameters = dict(model.named_parameters())
    check_piece({name: p.detach() for name, p in parameters.items()}, piece, float("inf"))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(piece[name])
    return model


def set_statistics(model: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Give every batch norm its mean and variance, sent as `layer/mean` and `layer/variance`."""
    for name, norm in batch_norms(model):
        norm.statistics = (statistics[f"{name}/mean"], statistics[f"{name}/variance"])
