"""The server half of a federation: it hands out slices, takes back what holds up, and closes rounds.

It knows a network only as a `Transport`, and the round itself only through `federation.rounds`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from whalefl import __version__
from whalefl.config import to_toml
from whalefl.errors import WhaleflError
from whalefl.execution import write_model, write_served
from whalefl.federation.evaluation import Score
from whalefl.federation.rounds import Federation, State, average_round, ranked
from whalefl.federation.simulation import first_state, over
from whalefl.flower.blocks import from_block, most_block_bytes, to_block
from whalefl.flower.calibration import Calibration, heard
from whalefl.flower.checkpoint import Ledger, load_checkpoint, mend_metrics, save_checkpoint
from whalefl.flower.checks import check_piece, check_trained, check_welcome, check_wish
from whalefl.flower.handshake import check_identity, identity_of
from whalefl.flower.journal import Journal
from whalefl.flower.messages import Ask, Hello, Train, Trained, Welcome, Wish, from_json, to_json
from whalefl.flower.peers import Peer, counted, first_report, plan_of, report_of
from whalefl.flower.post import Letter, Post
from whalefl.flower.refusal import Refused
from whalefl.flower.scoring import score_on_devices, score_on_server
from whalefl.flower.terms import Deployment
from whalefl.flower.transport import Arrival, Transport
from whalefl.runs import DEPLOYED, FINISHED, RUNNING, RunFolder
from whalefl.scheduling.policies import Announcement, ServerMemory, Whale
from whalefl.subnet.aggregation import PartialSums
from whalefl.subnet.axes import Plan
from whalefl.subnet.slicing import Weights, cut, plan_key
from whalefl.values import DeviceReport, RoundRecord

log = logging.getLogger("whalefl.server")
_PAUSE_S = 1.0
_AGAIN_S = 60.0
"""A device that was refused is greeted again after so long: its owner may have mended it."""
_SOON_S = 3.0
"""And one that could not be reached after so long."""
_NO_TENSORS = most_block_bytes(0)


@dataclass(frozen=True, eq=False)
class Errand:
    """A slice that is out: at which level, by which plan, and what was sent."""

    level: int
    plan: Plan
    piece: Weights


@dataclass(eq=False)
class Harvest:
    """What a round has brought in so far: sums, reports, the bits by which a threshold is found, and the devices with
    their wishes for the next round, which do not count before this one has closed."""

    sums: PartialSums
    reports: list[DeviceReport] = field(default_factory=list)
    bits: list[bool] = field(default_factory=list)
    peers: dict[int, Peer] = field(default_factory=dict)


class Coordinator:
    """One run of a federation; `run` goes on from the last finished round in `folder`."""

    def __init__(self, deployment: Deployment, federation: Federation, folder: Path, transport: Transport) -> None:
        self.deployment, self.federation, self.transport = deployment, federation, transport
        self.terms, self.settings = deployment.terms, deployment.experiment
        self.identity = identity_of(deployment, federation.task.axes)
        self.folder = RunFolder(folder)
        self.peers: dict[int, Peer] = {}
        self._shunned: dict[int, float] = {}  # node -> when it may be greeted again
        self.record: RoundRecord | None = None
        self.calibration, self.announced = Calibration(), Announcement(1)
        self.state: State = first_state(federation)
        self.journal = Journal(folder, self._resumed(folder))
        self.post = Post(transport, self.journal, self.terms.deadline_s, self._aside)

    def _resumed(self, folder: Path) -> dict[str, int]:
        """Go on from a checkpoint, or begin a run folder; returns the events counted so far."""
        found = load_checkpoint(folder, self.federation, self.deployment.fingerprint)
        if found is None:
            for left in folder.glob("*"):  # of a run that was killed before its first round ended
                left.unlink()
            RunFolder.create(folder, to_toml(self.settings), DEPLOYED, __version__)
            return {}
        self.state, ledger = found
        mend_metrics(self.folder, ledger)
        self.calibration, self.announced, self.record = ledger.calibration, ledger.announced, ledger.record
        log.info("going on after round %d", self.state.round)
        return ledger.counts

    def run(self) -> None:
        """All rounds that are left."""
        status = "failed"
        self.folder.mark(RUNNING)
        try:
            self._status("waiting for devices")
            self._gather_fleet()
            while not self._over():
                self._round()
            write_model(self.folder, self.state.weights)
            if self.terms.evaluation == "server":
                write_served(self.folder, self.federation, self.state.weights)
            status = FINISHED
        finally:
            self.folder.mark(status)
            self._status(status)

    def _over(self) -> bool:
        accuracy, target = None if self.record is None else self.record.accuracy, self.settings.target
        reached = target is not None and accuracy is not None and accuracy >= target
        return over(self.settings, self.state) or (self.terms.stop_at_target and reached)

    def _status(self, state: str) -> None:
        connected = {node.id for node in self.transport.nodes()}
        peers, rounds = self.peers.values(), self.settings.rounds
        self.journal.status(state, rounds, self.record, peers, connected, self.post.busy)

    def _gather_fleet(self) -> None:
        """Wait until the whole fleet has introduced itself, or for `wait_s`."""
        until = time.monotonic() + self.terms.wait_s
        while len(self.peers) < len(self.federation.members) and time.monotonic() < until:
            self._greet()
            self.post.attend(_PAUSE_S)
        if self.state.round == 0:
            first = tuple(first_report(self.federation, peer) for peer in self.peers.values())
            self.state = replace(self.state, reports=first)

    def _greet(self) -> None:
        """Say hello to every connected device that has not been met yet."""
        now, known = time.monotonic(), self.peers.keys() | self.post.busy
        for node in self.transport.nodes():
            if node.id not in known and self._shunned.get(node.id, now) <= now:
                hello = to_json(Hello(self.identity, Ask(self.announced, self._trial())))
                noise = os.urandom(self.terms.probe_kb * 1024)
                self.post.send(node.id, "hello", self.state.round + 1, hello, noise, _NO_TENSORS)

    def _aside(self, what: str, arrival: Arrival) -> None:
        """A reply that no round waits for: an introduction, or a slice that comes too late, whose wish still counts."""
        if what == "hello":
            self._met(arrival)
        elif what == "train" and arrival.error is None and arrival.node in self.peers:
            peer = self.peers[arrival.node]
            try:
                late = from_json(arrival.body, Trained)
                check_wish(self.federation, late.wish)
            except Refused as refusal:
                self._refuse(peer, refusal)
                return
            self.peers[arrival.node] = replace(peer, wish=late.wish, exchange_s=arrival.seconds)

    def _met(self, arrival: Arrival) -> None:
        try:
            peer = self._introduced(arrival)
        except Refused as refusal:
            self._shunned[arrival.node] = time.monotonic() + _AGAIN_S
            self.journal.note("refused", self.state.round + 1, None, arrival.node, str(refusal))
            self._status("running")
            return
        if peer is None:
            self._forget(arrival.node)
            return
        self.peers[arrival.node] = peer
        log.info("device %d joined with %d examples", peer.device, peer.examples)
        self._status("running")

    def _introduced(self, arrival: Arrival) -> Peer | None:
        """The device behind an introduction; None where the message did not reach it."""
        if arrival.error is not None:
            self.journal.note("failed", self.state.round + 1, None, arrival.node, arrival.error)
            return None
        welcome = from_json(arrival.body, Welcome)
        check_identity(self.identity, welcome.identity, f"device {welcome.device}")
        check_welcome(self.federation, self.terms, welcome, self._registered(arrival.node))
        if welcome.device in {peer.device for peer in self.peers.values()}:
            raise Refused(f"device {welcome.device} is already there under another key")
        return Peer(arrival.node, welcome.device, welcome.examples, welcome.owned, welcome.wish, arrival.seconds)

    def _registered(self, node: int) -> int | None:
        """The device that a node's key is registered for, if it was registered under such a name."""
        name = next((known.name for known in self.transport.nodes() if known.id == node), "")
        prefix, _, number = name.rpartition("-")
        return int(number) if prefix == "device" and number.isdigit() else None

    def _refuse(self, peer: Peer, refusal: Refused) -> None:
        """Write it down, and get to know the device anew: it may have been started again, or be another one now."""
        self.journal.note("refused", self.state.round + 1, peer.device, peer.node, str(refusal))
        self._forget(peer.node)

    def _forget(self, node: int) -> None:
        self.peers.pop(node, None)
        self._shunned[node] = time.monotonic() + _SOON_S

    def _round(self) -> None:
        """Open a round, take what comes until its deadline, and close it if enough came."""
        number = self.state.round + 1
        self._greet()
        self.post.attend(0.0)
        peers = self._available(number)
        if len(peers) < self.terms.quorum:
            self.post.attend(_PAUSE_S)
            return
        if self.terms.negotiation == "ask" and number > 1:
            peers = self._negotiated(peers)
        memory, following = self.federation.method.policy.announce(self.state.memory, number + 1, self.state.reports)
        if self._searched_by() is not None:
            following = replace(following, threshold=self.calibration.threshold)
        started = time.monotonic()
        harvest = self._collected(number, peers, following)
        if len(harvest.reports) < self.terms.quorum:
            why = f"{len(harvest.reports)} of {len(peers)} answered; {self.terms.quorum} are needed"
            self.journal.note("repeated", number, None, None, why)
            return
        self._close(memory, following, harvest, time.monotonic() - started)

    def _available(self, number: int) -> list[Peer]:
        """The devices for a round: of those that are connected and not still busy, the first that it would have."""
        ready = {node.id for node in self.transport.nodes()} - self.post.busy
        there = {peer.device: peer for peer in self.peers.values() if peer.node in ready}
        wanted = [member.device.index for member in ranked(self.federation, number)]
        return [there[device] for device in wanted if device in there][: self.federation.settings.clients_per_round]

    def _searched_by(self) -> Whale | None:
        """The policy whose threshold is found by the devices' bits, if it is one of those."""
        policy = self.federation.method.policy
        return policy if isinstance(policy, Whale) and policy.threshold == "auto" else None

    def _trial(self) -> float | None:
        """The threshold on trial, while one is searched for: afterwards no device is asked any more."""
        policy = self._searched_by()
        return None if policy is None or self.calibration.frozen(policy.window) else self.calibration.trial

    def _negotiated(self, peers: Sequence[Peer]) -> list[Peer]:
        """The devices with their levels, asked for in an exchange of its own."""
        body = to_json(Ask(self.announced, self._trial()))

        def take(letter: Letter, arrival: Arrival) -> None:
            try:
                wish = from_json(arrival.body, Wish)
                check_wish(self.federation, wish)
            except Refused as refusal:
                self._refuse(letter.peer, refusal)
                return
            self.peers[letter.peer.node] = replace(letter.peer, wish=wish)

        letters = [Letter(peer, body, b"", _NO_TENSORS) for peer in peers]
        self.post.exchange("ask", self.state.round + 1, letters, take)
        answered = self.peers.keys() - self.post.busy
        return [self.peers[peer.node] for peer in peers if peer.node in answered]

    def _collected(self, number: int, peers: Sequence[Peer], following: Announcement) -> Harvest:
        """Send every device its slice, and add up what comes back and holds up."""
        harvest = Harvest(PartialSums(self.federation.task.axes))
        errands: dict[int, Errand] = {}
        slices: dict[tuple[bytes, ...], tuple[Weights, bytes]] = {}
        letters = []
        for peer in peers:
            level = peer.wish.level
            plan = plan_of(self.federation, peer.device, number, level)
            piece, block = self._slice(plan, slices)
            errands[peer.node] = Errand(level, plan, piece)
            order = Train(number, level, Ask(following, self._trial()), peer.exchange_s)
            most = most_block_bytes(sum(tensor.numel() for tensor in piece.values()))
            letters.append(Letter(peer, to_json(order), block, most))

        def take(letter: Letter, arrival: Arrival) -> None:
            try:
                self._add(harvest, letter, errands[arrival.node], number, arrival)
            except Refused as refusal:
                self._refuse(letter.peer, refusal)

        self.post.exchange("train", number, letters, take)
        return harvest

    def _slice(self, plan: Plan, known: dict[tuple[bytes, ...], tuple[Weights, bytes]]) -> tuple[Weights, bytes]:
        """The slice of a plan and its bytes, cut once for all devices that have the same plan."""
        key = plan_key(self.federation.task.axes, plan)
        if key not in known:
            piece = cut(self.federation.task.axes, self.state.weights, plan)
            known[key] = (piece, to_block(piece))
        return known[key]

    def _add(self, harvest: Harvest, letter: Letter, errand: Errand, number: int, arrival: Arrival) -> None:
        """Add a reply that holds up; raises before anything is added if it does not."""
        trained, piece = from_json(arrival.body, Trained), from_block(arrival.block)
        check_trained(self.federation, trained, number, errand.level)
        check_piece(errand.piece, piece, self.terms.most_change)
        peer, up, down = letter.peer, len(arrival.block), len(letter.block)
        harvest.sums.add(counted(self.federation, peer, errand.plan), piece)
        harvest.reports.append(report_of(self.federation, peer, trained, arrival.seconds, up, down))
        if trained.wish.above is not None:
            harvest.bits.append(trained.wish.above)
        harvest.peers[peer.node] = replace(peer, wish=trained.wish, exchange_s=arrival.seconds)

    def _close(self, memory: ServerMemory, following: Announcement, harvest: Harvest, round_s: float) -> None:
        """Average, score, and write everything down before the next round begins."""
        self.peers |= harvest.peers
        reports = tuple(sorted(harvest.reports, key=lambda report: report.device))
        moved = replace(self.state, memory=memory, reports=reports)
        self.state, record = average_round(self.federation, moved, self.announced, harvest.sums, round_s)
        policy = self._searched_by()
        if policy is not None:
            self.calibration = heard(self.calibration, harvest.bits, policy.quantile, policy.window)
        self.record, self.announced = self._scored(record), following
        self._keep()
        levels = " ".join(f"{report.device}:{report.level}" for report in reports)
        accuracy = "" if self.record.accuracy is None else f", accuracy {100 * self.record.accuracy:.1f} %"
        log.info("round %d: %.1f s, levels %s%s", self.state.round, round_s, levels, accuracy)

    def _keep(self) -> None:
        """The checkpoint first, the metrics after it: whatever is cut off in between is mended from the checkpoint."""
        assert self.record is not None
        ledger = Ledger(
            terms=self.deployment.fingerprint,
            round=self.state.round,
            clock_s=self.state.clock_s,
            memory=self.state.memory,
            reports=self.state.reports,
            calibration=self.calibration,
            announced=self.announced,
            counts=dict(self.journal.counts),
            record=self.record,
        )
        save_checkpoint(self.folder.path, self.state, ledger)
        self.folder.append(self.record)
        self._status("running")

    def _scored(self, record: RoundRecord) -> RoundRecord:
        if record.round % self.settings.evaluation.every and not over(self.settings, self.state):
            return record
        score = self._score(record.round)
        if score is None:
            return record
        if not isfinite(score.loss):
            raise WhaleflError(f"training diverged in round {record.round}: the test loss is {score.loss}")
        return replace(record, accuracy=score.accuracy, loss=score.loss, metrics=dict(score.more))

    def _score(self, round: int) -> Score | None:
        if self.terms.evaluation == "server":
            return score_on_server(self.federation, self.state)
        ready = self._available(round)
        return score_on_devices(self.federation, self.terms, self.state, ready, self.post)
