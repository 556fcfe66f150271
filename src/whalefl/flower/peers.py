"""The devices as the server knows them, and what it writes down about each of their rounds."""

from __future__ import annotations

from dataclasses import dataclass

from whalefl.federation.rounds import Federation, contribution_of
from whalefl.flower.messages import Trained, Wish
from whalefl.subnet.aggregation import Contribution
from whalefl.subnet.axes import Plan
from whalefl.values import Delay, DeviceReport, Energy


@dataclass(frozen=True)
class Peer:
    """A device that has introduced itself: what it said of its data, its wish, and how long its last exchange took."""

    node: int
    device: int
    examples: int
    owned: tuple[int, ...] | None
    wish: Wish
    exchange_s: float | None = None


def plan_of(federation: Federation, device: int, round: int, level: int) -> Plan:
    """The plan that server and device both work out for themselves."""
    extraction, width = federation.method.extraction, federation.settings.ladder.width(level)
    return extraction.plan(federation.task.axes, width, round, device, federation.seeds.training)


def counted(federation: Federation, peer: Peer, plan: Plan) -> Contribution:
    return contribution_of(federation, plan, peer.owned or (), peer.examples)


def report_of(
    federation: Federation, peer: Peer, trained: Trained, exchange_s: float, up: int, down: int
) -> DeviceReport:
    """A device's round as the server saw it. What a device does not tell (its utility, its load) stays unknown.

    Whatever of the exchange was not computing counts as transmission, Flower's own delays included.
    """
    member = federation.members[peer.device]
    works, delay = member.works, Delay(trained.computing_s, max(0.0, exchange_s - trained.computing_s))
    return DeviceReport(
        device=peer.device,
        kind=member.device.kind,
        level=trained.level,
        share=works[trained.level - 1].upload_bits / works[0].upload_bits,
        loss=trained.loss,
        utility=None,
        fisher=None,
        fisher_unit=None,
        known=delay,
        true=delay,
        unit_s=trained.wish.unit_s,
        energy=Energy(0.0, 0.0),
        link="real",
        rate_mbps=0.0,
        slowdown=1.0,
        free_memory_mb=0.0,
        bytes_up=up,
        bytes_down=down,
    )


def first_report(federation: Federation, peer: Peer) -> DeviceReport:
    """What is known of a device before its first round: how long it expects the smallest slice to take."""
    smallest = federation.settings.ladder.levels
    nothing = Trained(0, smallest, 0.0, 0.0, peer.wish)
    return report_of(federation, peer, nothing, 0.0, 0, 0)
