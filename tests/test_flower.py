"""The two halves of a real federation together, without a network: rounds, refusals, memory, resuming."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from threading import Timer

import httpx
import numpy as np
import pytest
import torch
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from in_process import LocalTransport, digits_deployment, make_coordinator, make_residents
from test_side_by_side import alive
from whalefl.cli import main
from whalefl.cli.deploy import agreed
from whalefl.errors import WhaleflError
from whalefl.execution import prepared
from whalefl.federation.engine import PlainEngine
from whalefl.federation.methods import Method
from whalefl.federation.rounds import Federation
from whalefl.federation.simulation import assemble, rounds_of
from whalefl.fleet.devices import Fleet, on_curve
from whalefl.flower import coordinator, probes
from whalefl.flower.blocks import from_block, to_block
from whalefl.flower.calibration import Calibration, heard
from whalefl.flower.deploy.app_folder import write_app
from whalefl.flower.deploy.gate import Gate
from whalefl.flower.deploy.keys import make_certificates
from whalefl.flower.deploy.processes import Child, freed, listens
from whalefl.flower.deploy.setup import create_federation
from whalefl.flower.deploy.status import status_lines
from whalefl.flower.folders import DeviceFolder, ServerFolder
from whalefl.flower.handshake import axes_fingerprint
from whalefl.flower.journal import STATUS
from whalefl.flower.memory import load_memory
from whalefl.flower.messages import Identity, Refusal, Train, Trained, Wish, from_json, to_json
from whalefl.flower.parties import federation_on_server
from whalefl.flower.records import from_records, to_records
from whalefl.flower.refusal import Refused
from whalefl.flower.relay import Parcel
from whalefl.flower.stopwatch import Stopwatch, Transfers, read_transfers
from whalefl.flower.terms import deployment_of, read_deployment, to_toml
from whalefl.flower.testbed.bench import Run
from whalefl.flower.testbed.page import page
from whalefl.flower.testbed.prediction import (
    Errors,
    Gauge,
    errors_of,
    gauged,
    gauges_from,
    predicted_rounds,
    time_to_target,
)
from whalefl.flower.testbed.quotas import Hierarchy, Quota, find_hierarchy
from whalefl.flower.transport import Arrival
from whalefl.lock import only_one
from whalefl.runs import METRICS
from whalefl.scheduling.policies import FunctionPolicy
from whalefl.subnet.slicing import Weights

TOLERANCE = 1e-6
"""What a federation's model may differ by from the simulator's: sums are float64, rounded once a round."""


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring of this machine: it takes time and differs from run to run. And no pauses."""
    monkeypatch.setattr(coordinator, "_PAUSE_S", 0.05)
    monkeypatch.setattr(probes, "load_slowdown", lambda threads, seconds=0.2: 1.0)
    curve = tuple((10.0**power, 10.0 ** (power - 9)) for power in range(4, 9))
    monkeypatch.setattr(probes, "measured_curve", lambda federation, member, steps=2: curve)


def simulated(federation: Federation, settings, levels: dict[int, dict[int, int]] | None = None) -> Weights:
    """The simulator's model after the last round, with these levels (round -> device -> level) if given."""
    if levels is not None:
        policy = federation.method.policy
        chosen = FunctionPolicy(
            lambda announcement, profile, *_: levels[announcement.round][profile.device],
            needs_fisher=policy.needs_fisher,
        )
        method = Method(federation.method.extraction, chosen)
        federation = assemble(federation.task, method, settings.fleet, settings.weather, settings, settings.all_seeds())
    # One device after another, as devices do: stacks of several round otherwise, and training makes that grow.
    alone = PlainEngine(federation.task, settings.training, largest=1)
    *_, last = rounds_of(federation, alone)
    return last.state.weights


def largest_difference(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "feddropout", "fedrolex"])
def test_a_federation_without_faults_equals_the_simulator(method: str, tmp_path: Path) -> None:
    deployment = digits_deployment(method)
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator.run()
    expected = simulated(prepared(deployment.experiment), deployment.experiment)
    assert largest_difference(coordinator.state.weights, expected) < TOLERANCE
    assert not coordinator.journal.counts
    records = list(coordinator.folder.records())
    assert [record["round"] for record in records] == [1, 2, 3]
    assert coordinator.folder.meta()["status"] == "finished"


def test_whale_equals_the_simulator_with_the_same_levels(tmp_path: Path) -> None:
    deployment = digits_deployment("whale", rounds=6, whale={"window": 2})
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator.run()
    levels = {r["round"]: {d["device"]: d["level"] for d in r["devices"]} for r in coordinator.folder.records()}
    expected = simulated(prepared(deployment.experiment), deployment.experiment, levels)
    assert largest_difference(coordinator.state.weights, expected) < TOLERANCE
    assert coordinator.calibration.rounds > 0


def test_there_is_one_exchange_a_round_after_the_first(tmp_path: Path) -> None:
    coordinator = make_coordinator(digits_deployment("whale"), tmp_path)
    coordinator.run()
    transport = coordinator.transport
    assert isinstance(transport, LocalTransport)
    assert [kind for node, kind in transport.sent if node == 0] == ["query", "train", "train", "train"]


def test_levels_can_be_negotiated_in_an_exchange_of_their_own(tmp_path: Path) -> None:
    coordinator = make_coordinator(digits_deployment("whale", federation={"negotiation": "ask"}), tmp_path)
    coordinator.run()
    transport = coordinator.transport
    assert isinstance(transport, LocalTransport)
    kinds = [kind for node, kind in transport.sent if node == 0]
    assert kinds == ["query", "train", "query", "train", "query", "train"]


def test_neither_fisher_values_nor_utilities_leave_a_device(tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(node: int, reply: Parcel) -> Parcel:
        seen.append(reply.body)
        return reply

    terms = {"evaluation": "devices", "negotiation": "ask"}
    make_coordinator(digits_deployment("whale", rounds=4, federation=terms), tmp_path, watch).run()
    replies = [json.loads(body) for body in seen]
    assert {reply["kind"] for reply in replies} == {"Welcome", "Wish", "Trained", "Gathered", "Judged"}
    layers = {name for reply in replies for name in reply.get("counts", {})}
    fields = {key for reply in replies for key in _keys(reply)} - layers
    assert fields == {
        *("kind", "identity", "version", "terms", "axes", "device", "examples", "owned", "wish"),
        *("level", "unit_s", "above", "round", "loss", "computing_s"),
        *("able", "counts", "predictions", "right"),
    }
    page = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text(encoding="utf8")
    for field in fields - {"kind", "identity", "wish"}:
        assert f"`{field}`" in page, f"docs/privacy.md does not say what {field} reveals"


def test_no_bit_is_asked_for_once_the_threshold_is_frozen(tmp_path: Path) -> None:
    bits: dict[int, list[object]] = {}

    def watch(node: int, reply: Parcel) -> Parcel:
        body = json.loads(reply.body)
        if body["kind"] == "Trained":
            bits.setdefault(body["round"], []).append(body["wish"]["above"])
        return reply

    coordinator = make_coordinator(digits_deployment("whale", rounds=24, whale={"window": 2}), tmp_path, watch)
    coordinator.run()
    assert coordinator.calibration.frozen(2)
    asked = [number for number, answers in bits.items() if any(bit is not None for bit in answers)]
    assert asked and len(asked) == coordinator.calibration.rounds and max(asked) < 24
    assert coordinator.announced.threshold == coordinator.calibration.threshold


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    return set()


def changed(reply: Parcel, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Parcel:
    return replace(reply, block=to_block(change(from_block(reply.block))))


def not_finite(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    return tensors


def said(reply: Parcel, **changes: object) -> Parcel:
    return replace(reply, body=json.dumps({**json.loads(reply.body), **changes}))


RUBBISH: dict[str, tuple[Callable[[Parcel], Parcel | Arrival], str]] = {
    "nan": (lambda reply: changed(reply, not_finite), "not finite"),
    "shapes": (lambda reply: changed(reply, lambda ts: {n: t[..., :1] for n, t in ts.items()}), "has the shape"),
    "names": (lambda reply: changed(reply, lambda ts: {f"x{n}": t for n, t in ts.items()}), "wrong parameters"),
    "type": (lambda reply: changed(reply, lambda ts: {n: t.double() for n, t in ts.items()}), "is of type"),
    "size": (lambda reply: changed(reply, lambda ts: {n: t.repeat_interleave(10, 0) for n, t in ts.items()}), "shape"),
    "norm": (lambda reply: changed(reply, lambda ts: {n: t + 1e6 for n, t in ts.items()}), "norm"),
    "no tensors": (lambda reply: replace(reply, block=b"not safetensors"), "cannot be read"),
    "level": (lambda reply: said(reply, level=5), "level 5"),
    "round": (lambda reply: said(reply, round=9), "round 9"),
    "loss": (lambda reply: said(reply, loss=float("nan")), "cannot be read"),
    "wish": (lambda reply: said(reply, wish={"level": 0, "unit_s": 1.0, "above": None}), "level 0"),
    "field": (lambda reply: said(reply, note="hello"), "note"),
    "kind": (lambda reply: said(reply, kind="Welcome"), "Welcome"),
    "no json": (lambda reply: replace(reply, body="{"), "cannot be read"),
}


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_is_refused_and_cannot_change_the_model(what: str, tmp_path: Path, of_three_devices: Weights) -> None:
    spoil, why = RUBBISH[what]

    def tamper(node: int, reply: Parcel) -> Parcel | Arrival:
        trained = json.loads(reply.body)["kind"] == "Trained"
        return spoil(reply) if node == 3 and trained else reply

    coordinator = make_coordinator(digits_deployment(rounds=1), tmp_path, tamper)
    coordinator._gather_fleet()
    coordinator._round()
    assert coordinator.journal.counts["refused"] == 1
    event = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[0])
    assert why in event["why"] and event["device"] == 3
    assert largest_difference(coordinator.state.weights, of_three_devices) == 0.0


@pytest.fixture(scope="module")
def of_three_devices(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The model of a round in which device 3 was never heard of."""
    folder = tmp_path_factory.mktemp("three")
    honest = make_coordinator(digits_deployment(rounds=1), folder, lambda n, reply: None if _is_3(n, reply) else reply)
    honest.post.deadline_s = 0.5
    honest.run()
    assert honest.journal.counts["late"] == 1
    return honest.state.weights


def _is_3(node: int, reply: Parcel) -> bool:
    return node == 3 and json.loads(reply.body)["kind"] == "Trained"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "9.9.9"}, "has whalefl 9.9.9; it must be"),
        ({"terms": "0"}, "federation.toml with the mark 0"),
        ({"axes": "0"}, "axes have the mark 0"),
    ],
)
def test_a_device_of_another_version_terms_or_model_is_refused(
    changes: dict[str, str], why: str, tmp_path: Path
) -> None:
    def tamper(node: int, reply: Parcel) -> Parcel:
        body = json.loads(reply.body)
        if node == 1 and body["kind"] == "Welcome":
            return said(reply, identity={**body["identity"], **changes})
        return reply

    coordinator = make_coordinator(digits_deployment(rounds=1), tmp_path, tamper)
    coordinator.terms = replace(coordinator.terms, wait_s=1.0)
    coordinator.run()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["what"] for event in events] == ["refused"] and why in events[0]["why"]
    assert len(list(coordinator.folder.records())[0]["devices"]) == 3


def test_the_device_refuses_a_server_of_another_version(tmp_path: Path) -> None:
    coordinator = make_coordinator(digits_deployment(rounds=1, federation={"wait_s": 1.0}), tmp_path)
    coordinator.identity = Identity("0.0.0", *(coordinator.identity.terms, coordinator.identity.axes))
    coordinator._gather_fleet()
    assert not coordinator.peers and coordinator.journal.counts["refused"] == 4


def test_a_late_device_is_dropped_and_its_late_answer_only_heard(tmp_path: Path) -> None:
    held: list[Arrival] = []

    def slow(node: int, reply: Parcel) -> Parcel | None:
        body = json.loads(reply.body)
        if node == 2 and body["kind"] == "Trained" and body["round"] == 1:
            held.append(Arrival(node, reply.message, 99.0, reply.body, reply.block))
            return None
        return reply

    coordinator = make_coordinator(digits_deployment(rounds=2), tmp_path, slow)
    coordinator.post.deadline_s = 0.5
    coordinator._gather_fleet()
    coordinator._round()
    assert coordinator.journal.counts == {"late": 1} and coordinator.state.round == 1
    coordinator.transport.inbox.put(held[0])
    coordinator._round()  # it has answered by now, and takes part again
    assert len(coordinator.state.reports) == 4
    assert coordinator.peers[2].exchange_s == 1.0


def test_a_round_with_too_few_answers_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def often_silent(node: int, reply: Parcel) -> Parcel | Arrival:
        if json.loads(reply.body)["kind"] == "Trained":
            tries.append(node)
            if len(tries) <= 4:
                return Arrival(node, reply.message, 1.0, error="gone")
        return reply

    deployment = digits_deployment(federation={"quorum": 4})
    coordinator = make_coordinator(deployment, tmp_path, often_silent)
    coordinator.run()
    assert coordinator.journal.counts == {"failed": 4, "repeated": 1}
    expected = simulated(prepared(deployment.experiment), deployment.experiment)
    assert largest_difference(coordinator.state.weights, expected) < TOLERANCE


def test_a_round_is_tried_again_at_the_levels_that_were_chosen_for_it(tmp_path: Path) -> None:
    """Devices that answered have chosen another level for the next round, which does not count yet."""
    failures: list[int] = []

    def once_silent(node: int, reply: Parcel) -> Parcel | Arrival:
        if node == 2 and json.loads(reply.body)["kind"] == "Trained" and len(failures) < 2:
            failures.append(node)
            return Arrival(node, reply.message, 1.0, error="gone")
        return reply

    deployment = digits_deployment("prefix+random", rounds=4, federation={"quorum": 4})
    coordinator = make_coordinator(deployment, tmp_path, once_silent)
    coordinator.run()
    assert coordinator.journal.counts == {"failed": 2, "repeated": 2}
    assert [record["round"] for record in coordinator.folder.records()] == [1, 2, 3, 4]


def test_a_device_that_was_started_again_is_greeted_before_it_trains(tmp_path: Path) -> None:
    deployment = digits_deployment("whale", rounds=3)
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator._gather_fleet()
    coordinator._round()
    coordinator.transport.residents[1] = make_residents(deployment, tmp_path)[1]
    coordinator._round()
    assert coordinator.journal.counts == {"refused": 1} and 1 not in coordinator.peers
    coordinator._shunned.clear()
    coordinator._round()
    assert {report.device for report in coordinator.state.reports} == {0, 1, 2, 3}


def test_absent_devices_are_replaced_by_those_that_are_there(tmp_path: Path) -> None:
    deployment = digits_deployment("fedavg", rounds=4, clients_per_round=1)
    coordinator = make_coordinator(deployment, tmp_path)
    del coordinator.transport.residents[0], coordinator.transport.residents[3]
    coordinator.run()
    trained = [record["devices"][0]["device"] for record in coordinator.folder.records()]
    assert len(trained) == 4 and set(trained) <= {1, 2}


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"examples": 10**6}, "is not its share"), ({"owned": [0]}, "is not its share"), ({"device": 9}, "device 9")],
)
def test_a_device_cannot_boast(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    def boast(node: int, reply: Parcel) -> Parcel:
        return said(reply, **changes) if node == 1 and '"Welcome"' in reply.body else reply

    coordinator = make_coordinator(digits_deployment(rounds=1, federation={"wait_s": 0.5}), tmp_path, boast)
    coordinator._gather_fleet()
    assert set(coordinator.peers) == {0, 2, 3}
    assert why in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize("changes", [{"predictions": 10**6, "right": 10**6}, {"right": 10**6}, {"loss": -1.0}])
def test_a_score_that_cannot_be_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    def boast(node: int, reply: Parcel) -> Parcel:
        return said(reply, **changes) if '"Judged"' in reply.body and node == 1 else reply

    deployment = digits_deployment(rounds=1, federation={"evaluation": "devices"})
    coordinator = make_coordinator(deployment, tmp_path, boast)
    coordinator.run()
    assert coordinator.journal.counts == {"refused": 1}
    assert coordinator.record is not None and coordinator.record.accuracy is not None


def test_sums_that_would_spoil_the_statistics_of_all_are_refused(tmp_path: Path) -> None:
    def spoil(node: int, reply: Parcel) -> Parcel:
        huge = node == 1 and '"Gathered"' in reply.body
        return changed(reply, lambda sums: {n: t.fill_(1e300) for n, t in sums.items()}) if huge else reply

    deployment = digits_deployment(rounds=1, federation={"evaluation": "devices", "passes": 1})
    coordinator = make_coordinator(deployment, tmp_path, spoil)
    coordinator.run()
    assert coordinator.journal.counts == {"refused": 1}
    assert coordinator.record is not None and coordinator.record.loss is not None and coordinator.record.loss < 100


@pytest.mark.parametrize("when", ["before the metrics", "after the metrics", "in mid-line", "in the next round"])
def test_a_killed_server_goes_on_and_no_round_is_lost_or_done_twice(when: str, tmp_path: Path) -> None:
    deployment = digits_deployment("whale", rounds=4)
    first = make_coordinator(deployment, tmp_path)
    first._gather_fleet()
    first._round()
    first._round()
    metrics = tmp_path / "run" / METRICS
    if when == "before the metrics":
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    elif when == "in mid-line":
        metrics.write_text(metrics.read_text()[:-20])
    elif when == "in the next round":
        harvest = first._collected(3, list(first.peers.values()), first.announced)
        assert len(harvest.reports) == 4  # they trained, and the server was killed before it closed the round
    second = make_coordinator(deployment, tmp_path)
    assert second.state.round == 2
    second.run()
    records = list(second.folder.records())
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    levels = {r["round"]: {d["device"]: d["level"] for d in r["devices"]} for r in records}
    expected = simulated(prepared(deployment.experiment), deployment.experiment, levels)
    assert largest_difference(second.state.weights, expected) < TOLERANCE


def test_a_checkpoint_of_another_agreement_is_refused(tmp_path: Path) -> None:
    make_coordinator(digits_deployment(rounds=1), tmp_path).run()
    with pytest.raises(WhaleflError, match=r"belongs to another federation\.toml"):
        make_coordinator(digits_deployment(rounds=2), tmp_path)


def test_evaluation_on_devices_equals_that_on_the_server(tmp_path: Path) -> None:
    deployment = digits_deployment(rounds=2, federation={"evaluation": "devices", "passes": 4})
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator.run()
    on_server = make_coordinator(digits_deployment(rounds=2), tmp_path / "server")
    on_server.run()
    ours, theirs = coordinator.record, on_server.record
    assert ours is not None and theirs is not None
    assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.02)
    assert ours.loss == pytest.approx(theirs.loss, rel=0.02)


def test_a_device_keeps_its_window_and_its_place_across_restarts(tmp_path: Path) -> None:
    deployment = digits_deployment("whale", rounds=2)
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator.run()
    before = coordinator.transport.residents[0].memory
    again = make_residents(deployment, tmp_path)[0].memory
    assert again == before and len(again.after.window) == 2
    assert again.after.consumed == 2 * 3 * 16
    (tmp_path / "device-0" / "memory.json").write_text("{")
    with pytest.raises(WhaleflError, match="cannot be read; remove it"):
        load_memory(tmp_path / "device-0" / "memory.json", again.terms)


def test_a_device_trains_only_the_level_it_chose(tmp_path: Path) -> None:
    deployment = digits_deployment(rounds=1)
    coordinator = make_coordinator(deployment, tmp_path)
    coordinator._gather_fleet()
    peer = coordinator.peers[0]
    coordinator.peers[0] = replace(peer, wish=Wish(5, 1.0, None))
    coordinator._round()
    assert coordinator.journal.counts["refused"] == 1


def test_two_devices_cannot_be_the_same_one(tmp_path: Path) -> None:
    def impostor(node: int, reply: Parcel) -> Parcel:
        return said(reply, device=0) if node == 1 and '"Welcome"' in reply.body else reply

    coordinator = make_coordinator(digits_deployment(rounds=1, federation={"wait_s": 1.0}), tmp_path, impostor)
    coordinator._gather_fleet()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "its key is registered for device 1" in events[0]["why"]


@given(
    st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=3, max_size=20, unique=True),
    st.floats(min_value=0.2, max_value=0.8),
)
def test_one_bit_a_round_finds_the_threshold(utilities: list[float], quantile: float) -> None:
    calibration = Calibration()
    for _ in range(40):
        calibration = heard(calibration, [u > calibration.trial for u in utilities], quantile, 40)
    assert calibration.threshold is not None
    low, high = np.quantile(utilities, [max(0, quantile - 0.34), min(1, quantile + 0.34)])
    assert low / 1.2 <= calibration.threshold <= high * 1.2


@given(st.lists(st.floats(min_value=-6, max_value=6), min_size=2, max_size=20, unique=True), st.integers(1, 10))
def test_no_threshold_is_frozen_that_is_off_by_a_level(exponents: list[float], window: int) -> None:
    """However short the window: with a threshold far too high every device would stay small for ever."""
    calibration, utilities = Calibration(), [10.0**exponent for exponent in exponents]
    for _ in range(40):
        calibration = heard(calibration, [u > calibration.trial for u in utilities], 0.5, window)
    assert calibration.frozen(window) and calibration.threshold is not None
    middle = len(utilities) // 2
    low, high = sorted(utilities)[middle - 1], sorted(utilities)[-middle]
    assert low / 2 <= calibration.threshold <= high * 2


def test_a_search_follows_utilities_that_fall_away() -> None:
    calibration = Calibration()
    for number in range(40):
        utility = 10.0 ** max(-4.0, 3.0 - 0.5 * number)
        calibration = heard(calibration, [utility > calibration.trial], 0.5, 30)
    assert calibration.frozen(30) and calibration.threshold is not None
    assert 10.0**-4 / 2 <= calibration.threshold <= 10.0**-4 * 2


def test_the_threshold_is_frozen_after_its_rounds() -> None:
    calibration = Calibration()
    for _ in range(12):
        calibration = heard(calibration, [calibration.trial < 3.0], 0.5, 10)
    assert calibration.rounds == 10
    assert heard(calibration, [], 0.5, 99) == calibration


def test_records_are_cut_into_chunks_and_bounded() -> None:
    block = bytes(range(256)) * 100
    records = to_records("{}", block, 1000)
    assert len(records["block"]) == 26
    assert from_records(records, len(block)) == ("{}", block)
    with pytest.raises(Refused, match="25600 bytes of tensors; at most 25599"):
        from_records(records, len(block) - 1)
    with pytest.raises(Refused, match="records named"):
        from_records(type(records)({"body": records["body"]}), 1)
    assert from_records(to_records("{}", b"", 10), 0) == ("{}", b"")


def test_messages_come_back_as_they_were_and_nothing_else_is_read() -> None:
    message = Trained(1, 2, 0.5, 0.1, Wish(3, 1.5, True))
    assert from_json(to_json(message), Trained) == message
    with pytest.raises(Refused, match="'Train' was expected"):
        from_json(to_json(message), Train)
    with pytest.raises(Refused, match="no more memory"):
        from_json(to_json(Refusal("no more memory")), Trained)
    with pytest.raises(Refused, match="characters"):
        from_json("x" * 1_000_001, Trained)


def test_terms_come_back_as_they_were_written_and_are_checked(tmp_path: Path) -> None:
    deployment = digits_deployment()
    (tmp_path / "federation.toml").write_text(to_toml(deployment))
    again = read_deployment(tmp_path / "federation.toml")
    assert again == deployment and again.fingerprint == deployment.fingerprint
    other_place = replace(deployment, experiment=replace(deployment.experiment, data_dir="/elsewhere"))
    assert other_place.fingerprint == deployment.fingerprint
    other_rate = replace(deployment, terms=replace(deployment.terms, deadline_s=1.0))
    assert other_rate.fingerprint != deployment.fingerprint
    for values, why in [
        ({"deadline": 1.0}, "federation.deadline is not a known key; .*did you mean 'deadline_s'"),
        (3, "federation is 3; it must be a table"),
        ({"deadline_s": -1.0}, "federation.deadline_s is -1.0"),
        ({"quorum": 99}, "at most 4, a round's devices"),
        ({"quorum": "many"}, "federation.quorum is 'many'"),
    ]:
        with pytest.raises(WhaleflError, match=why):
            digits_deployment(federation=values)


def test_the_fingerprint_of_axes_tells_models_apart() -> None:
    axes = federation_on_server(digits_deployment()).task.axes
    other = replace(axes, sizes={name: size + 1 for name, size in axes.sizes.items()})
    assert axes_fingerprint(axes) == axes_fingerprint(replace(axes)) != axes_fingerprint(other)


def test_the_stopwatch_reads_flowers_lines(tmp_path: Path) -> None:
    times = iter([10.0, 12.5, 20.0, 21.0, 22.0, 22.1])
    watch = Stopwatch(tmp_path / "link.json", clock=lambda: next(times))
    watch.listen("INFO :      Receiving: train message (ID: abc123)\n")
    watch.listen("INFO :      Received successfully\n")
    watch.listen("INFO :      Sending: train message (ID: def456)\n")
    watch.listen("INFO :      Sent successfully\n")
    watch.listen("INFO :      Sending: query message (ID: def457)\n")  # a few bytes say nothing of the link
    watch.listen("INFO :      Sent successfully\n")
    assert read_transfers(tmp_path / "link.json") == Transfers("abc123", 2.5, 1.0)
    assert read_transfers(tmp_path / "nowhere.json") == Transfers()


def test_link_rates_from_the_stopwatch_or_from_the_server() -> None:
    transfers = Transfers("abc", down_s=2.0, up_s=1.0)
    assert probes.link_mbps(transfers, "abc", 1_000_000, 0) == pytest.approx(4.0)
    assert probes.link_mbps(transfers, "abc", 1_000_000, 500_000) == pytest.approx(4.0)
    assert probes.link_mbps(transfers, "other", 1_000_000, 0) is None
    assert probes.link_mbps(transfers, "abc", 1000, 0) is None
    assert probes.told_mbps(12.0, 2.0, 1_250_000) == pytest.approx(1.0)
    assert probes.told_mbps(None, 2.0, 1_250_000) is None


def test_a_device_short_of_memory_takes_the_widest_slice_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = make_coordinator(digits_deployment("fedavg", rounds=1), tmp_path)
    works = federated.federation.members[0].works
    monkeypatch.setattr(probes, "free_memory_mb", lambda: works[2].memory_mb)
    federated._gather_fleet()
    assert {peer.wish.level for peer in federated.peers.values()} == {3}


def test_load_slows_a_device_down_once_cores_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for percent, slowdown in ((0.0, 1.0), (75.0, 1.0), (100.0, 1.25)):
        monkeypatch.setattr("psutil.cpu_percent", lambda interval, percent=percent: percent)
        assert probes.load_slowdown(1) == slowdown


def test_a_curve_never_falls() -> None:
    assert probes.rising([(1.0, 2.0), (2.0, 1.0), (3.0, 4.0)]) == ((1.0, 2.0), (2.0, 2.0), (3.0, 4.0))


def test_a_folder_that_is_none_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WhaleflError, match=r"holds no device\.toml"):
        DeviceFolder(tmp_path).settings()
    (tmp_path / "device.toml").write_text('device = 0\nserver = "nohost"\nchunk_kb = 8\n')
    with pytest.raises(WhaleflError, match="HOST:PORT"):
        DeviceFolder(tmp_path).settings()


def test_devices_with_data_of_their_own_train_and_score_without_the_servers(tmp_path: Path) -> None:
    deployment = digits_deployment("fedavg", rounds=1, federation={"data": "own", "evaluation": "devices"})
    federated = make_coordinator(deployment, tmp_path)
    federated.run()
    assert {peer.examples for peer in federated.peers.values()} == {1438}
    assert federated.record is not None and federated.record.accuracy is not None
    assert not (tmp_path / "run" / "levels.json").exists() and (tmp_path / "run" / "model.safetensors").exists()


def test_a_server_without_data_still_knows_the_model() -> None:
    deployment = deployment_of(
        [{"task": "mnist", "method": "fedavg", "federation": {"data": "own", "evaluation": "devices"}}]
    )
    federation = federation_on_server(deployment)
    assert federation.task.axes.count == 1_556_874 and len(federation.task.train) == 1


def test_the_app_in_the_repository_is_the_one_that_is_deployed(tmp_path: Path) -> None:
    write_app(tmp_path)
    kept = Path(__file__).parent.parent / "apps" / "flower"
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {name: (kept / name).read_text() for name in written}


def test_certificates_are_for_the_names_given_and_keys_for_their_owner(tmp_path: Path) -> None:
    deployment = digits_deployment()
    create_federation(tmp_path / "lab", deployment, "lab.example", 9443, 9444)
    server = ServerFolder(tmp_path / "lab" / "server")
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["lab.example", "localhost"]
    authority = x509.load_pem_x509_certificate(server.authority.read_bytes())
    certificate.verify_directly_issued_by(authority)
    keys = [server.key, *(tmp_path / "lab").glob("device-*/key")]
    assert len(keys) == 5 and all(key.stat().st_mode & 0o077 == 0 for key in keys)
    assert len(list(server.devices.glob("*.pub"))) == 4
    with pytest.raises(WhaleflError, match="already exists"):
        create_federation(tmp_path / "lab", deployment, "lab.example", 9443, 9444)
    for host in ("lab.example:9443", "a b", "999.1.1.1", "", "-lab"):
        with pytest.raises(WhaleflError, match="without a port"):
            create_federation(tmp_path / "other", deployment, host, 9443, 9444)
    with pytest.raises(WhaleflError, match="port is 65530; it must be between 1 and"):
        create_federation(tmp_path / "other", deployment, "lab.example", 65530, 65531)
    assert not (tmp_path / "other").exists()


def test_the_status_says_where_a_federation_stands(tmp_path: Path) -> None:
    create_federation(tmp_path / "lab", digits_deployment(), "127.0.0.1", 9443, 9444)
    folder = ServerFolder(tmp_path / "lab" / "server")
    assert status_lines(folder) == ["no device has joined yet; the server is not running"]
    folder.home.mkdir()
    with only_one(folder.home):
        assert status_lines(folder) == ["no device has joined yet; the server is running"]
    federated = make_coordinator(digits_deployment(), tmp_path)
    federated.run()
    shutil.copytree(tmp_path / "run", folder.run)
    lines = status_lines(folder)
    assert lines[0].startswith("finished") and lines[1].startswith("round           3 of 3")
    assert [line.partition(" wants")[0].split()[1] for line in lines if " wants " in line] == ["0", "1", "2", "3"]
    status = json.loads((folder.run / STATUS).read_text())
    for device, there in zip(status["devices"], ("ready", "away", "busy", "ready"), strict=True):
        device["there"] = there
    (folder.run / STATUS).write_text(json.dumps(status | {"state": "running"}))
    lines = status_lines(folder)
    assert lines[0].startswith("the server is not running; it was running (as of")
    ends = [line.rpartition(", ")[2] for line in lines if " wants " in line]
    assert ends[1:3] == ["not connected", "has yet to answer"] and not {ends[0], ends[3]} & set(ends[1:3])
    with pytest.raises(WhaleflError, match=r"holds no server\.toml"):
        status_lines(ServerFolder(tmp_path))


def test_a_device_says_at_once_what_no_second_try_would_mend(tmp_path: Path) -> None:
    create_federation(tmp_path / "lab", digits_deployment(), "127.0.0.1", 9443, 9444)
    folder = DeviceFolder(tmp_path / "lab" / "device-0")
    key, authority = folder.key.read_bytes(), folder.authority.read_bytes()

    def refusal() -> str:
        start = [sys.executable, "-m", "whalefl", "deploy", "device", str(folder.path)]
        ended = subprocess.run(start, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and not folder.log.exists()
        (line,) = ended.stderr.splitlines()
        return line

    with only_one(folder.path):
        assert "another process is using" in refusal()
    folder.key.write_text("no key")
    assert "key is " in refusal()
    folder.key.write_bytes(key)
    folder.authority.unlink()
    assert "ca.pem is " in refusal()
    folder.authority.write_bytes(authority)
    right = 'device = 0\nserver = "a:1"\nchunk_kb = 8\n'
    for wrong, why in (
        (right + "thread = 1", "thread is not a known key; .*did you mean 'threads'"),
        (right + 'port = "x"', "port is 'x'; it must be a valid integer"),
        (right + "threads = 0", "threads is 0; it must be at least 1"),
        ("device = 0", "server is missing"),
    ):
        (folder.path / "device.toml").write_text(wrong)
        with pytest.raises(WhaleflError, match=why):
            folder.settings()


def test_a_port_counts_as_free_once_nobody_listens_there() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        assert listens(port) and not freed(port, patience_s=0.0)
        Timer(0.5, listener.close).start()
        assert freed(port, patience_s=30.0)


def test_quotas_speak_both_versions(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    (two / "cgroup.controllers").write_text("cpuset cpu io")
    assert find_hierarchy(two) == Hierarchy(two, 2)
    (one / "cpu").mkdir(parents=True)
    (one / "cpu" / "cgroup.procs").write_text("")
    assert find_hierarchy(one) == Hierarchy(one / "cpu", 1)
    with pytest.raises(WhaleflError, match="no cpu controller"):
        find_hierarchy(tmp_path)
    for version, file, content in ((1, "cpu.cfs_quota_us", "25000"), (2, "cpu.max", "25000 100000")):
        Quota(tmp_path, version).set(0.25)
        assert (tmp_path / file).read_text() == content


def test_what_the_simulator_predicts_of_a_round() -> None:
    experiment = digits_deployment("fedavg", weather={"fading": False, "load_factor": 1.0}).experiment
    gauges = [Gauge(((1e4, 1e-3), (1e7, 2e-3)), 5.0 + index) for index in range(4)]
    groups = tuple(replace(group, count=1) for group in experiment.fleet.groups for _ in range(group.count))
    federation = prepared(gauged(replace(experiment, fleet=Fleet(groups)), gauges))
    slow = federation.members[3]
    work = slow.works[0]
    rate = federation.sky.conditions(slow.device, 0.0).rate_mbps
    expected = 8.0 + on_curve(gauges[3].curve, work.flops) * work.samples + 2 * work.upload_bits / rate / 1e6
    report = {"device": 3, "level": 1, "true": {"computing_s": 2.0, "transmission_s": 9.0}}
    record = {"time_s": 12.0, "round_s": 12.0, "accuracy": 0.9, "devices": [report]}
    assert predicted_rounds(federation, [record]) == [pytest.approx(expected)]
    assert errors_of([9.0, 12.0], [record, record]).median == pytest.approx(0.125)
    assert time_to_target([record], 0.8) == 12.0 and time_to_target([record], 0.95) is None
    everyone = {**record, "devices": [{**report, "device": index} for index in range(4)]}
    found = gauges_from(federation, [gauge.curve for gauge in gauges], [everyone] * 3)
    assert found[3].overhead_s == pytest.approx(9.0 - 2 * work.upload_bits / rate / 1e6)
    assert on_curve(found[3].curve, work.flops) * work.samples == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("deploy", "server", "nowhere"), "holds no server.toml"),
        (("deploy", "device", "nowhere"), "holds no device.toml"),
        (("deploy", "status", "nowhere"), "holds no server.toml"),
        (("deploy", "init", "lab", "--host", "lab:1", "--devices", "2"), "without a port"),
        (("deploy", "init", "lab", "--host", "lab", "--devices", "0"), "devices is 0"),
        (("deploy", "init", "lab", "--host", "lab", "--set", "federation.quorum=99"), "federation.quorum is 99"),
        (
            ("deploy", "init", "lab", "--host", "lab", "--set", "federation.speed=1"),
            "federation.speed is not a known key",
        ),
        (
            ("deploy", "init", "lab", "--host", "lab", "--set", "clients_per_round=2", "--set", "federation.quorum=3"),
            "federation.quorum is 3",
        ),
        (("testbed", "digits", "--methods", "whales"), "whales"),
        (("testbed", "digits", "--cores", "many"), "cores is 'many'"),
        (("testbed", "digits", "--cores", "0.5,0"), "cores is (0.5, 0.0)"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(
    words: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["whalefl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
    assert not list(tmp_path.iterdir())


FLEET_FILE = """
[federation]
quorum = 2

[[fleet.groups]]
kind = "JetsonNano"
count = 2
widest_level = 2
"""


def test_a_file_holds_fleet_and_terms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET_FILE, encoding="utf8")
    deployment = agreed("digits", tmp_path / "fleet.toml", [], {}, None)
    assert deployment.terms.quorum == 2 and len(deployment.experiment.fleet) == 2
    assert deployment.experiment.fleet.devices[0].widest_level == 2
    assert deployment.experiment.horizon_s is None and deployment.experiment.target == 0.9  # of the task's preset
    assert agreed("digits", None, ["horizon_s=60"], {}, 3).experiment.horizon_s == 60
    with pytest.raises(WhaleflError, match="devices is 3; it must be left out where a fleet is given"):
        agreed("digits", tmp_path / "fleet.toml", [], {}, 3)
    assert len(agreed("mnist", None, [], {"method": "heterofl"}, 3).experiment.fleet) == 3  # not its preset's 20
    (tmp_path / "again.toml").write_text(to_toml(deployment), encoding="utf8")
    assert agreed(None, tmp_path / "again.toml", [], {}, None) == deployment


def test_what_a_device_would_tell_of_its_words_is_asked_for(tmp_path: Path) -> None:
    assert not agreed("wikitext2", None, [], {}, 2).experiment.aggregation.label_ownership
    told = tmp_path / "told.toml"
    told.write_text("[aggregation]\nlabel_ownership = true\n", encoding="utf8")
    assert agreed("wikitext2", told, [], {}, 2).experiment.aggregation.label_ownership
    assert agreed("digits", None, [], {}, 2).experiment.aggregation.label_ownership
    told.write_text('task = "wikitext2"\n', encoding="utf8")  # a file that stands for itself
    assert not agreed(None, told, [], {}, 2).experiment.aggregation.label_ownership


def test_classes_that_nobody_has_are_named(tmp_path: Path) -> None:
    (note,) = create_federation(tmp_path / "few", agreed("digits", None, [], {}, 3), "127.0.0.1", 9443, 9444)
    assert "no device has examples of" in note and note.count(",") == 3  # 3 x 2 of 10 classes
    assert not create_federation(
        tmp_path / "all", agreed("digits", None, ["partition.kind=iid"], {}, 3), "127.0.0.1", 9443, 9444
    )


def test_the_testbeds_page_has_a_line_for_each_method_run_and_device() -> None:
    errors = Errors(12, 0.11, 0.25)
    runs = [Run("fedavg", 1, 14, 311.4, 295.0, errors), Run("fedavg", 2, 14, 278.0, 251.0, errors)]
    runs.append(Run("whale", 1, 24, None, 260.0, Errors(24, 0.2, 0.3)))
    gauges = [Gauge(((1e6, 2e-4), (2e8, 1e-2)), 6.25)]
    lines = page("Title", runs, gauges, [0.5], "whalefl testbed").splitlines()
    assert "| fedavg | 2 of 2 | 295 (278-311) | 273 (251-295) | 14 (14-14) | 11 % | 25 % |" in lines
    assert "| whale | 0 of 1 | - | 260 | 24 | 20 % | 30 % |" in lines
    assert "| whale | 1 | not reached | 260 | 24 | 20 % | 30 % |" in lines
    assert "| 0 | 0.5 | 6.2 | 10.00 | 0.20 |" in lines


def test_the_gate_bounds_what_a_device_sends_at_once(tmp_path: Path) -> None:
    """Many requests at the same time are counted before any of them is answered."""
    authority, _ = make_certificates(["localhost"])
    (tmp_path / "ca.pem").write_bytes(authority)
    gate, answers = Gate("127.0.0.1:1", tmp_path / "ca.pem", most_bytes=100, reply_bytes=250), list[int]()

    class Slow:
        async def request(self, *_: object, **__: object) -> httpx.Response:
            await asyncio.sleep(0.05)
            return httpx.Response(200)

    async def push(path: str = "/v1/fleet/push-object", size: int = 100) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": bytes(size)}

        async def send(event: MutableMapping[str, object]) -> None:
            if event["type"] == "http.response.start":
                answers.append(int(str(event["status"])))

        await gate(
            {"type": "http", "path": path, "method": "POST", "headers": [(b"flwr-public-key", b"a")]}, receive, send
        )

    async def four_at_once() -> None:
        await asyncio.gather(*(push() for _ in range(4)))

    gate._client = Slow()  # type: ignore[assignment]
    asyncio.run(four_at_once())
    assert sorted(answers) == [200, 200, 413, 413]
    asyncio.run(push(size=101))
    asyncio.run(push(path="/v1/fleet/../control/start-run"))
    assert answers[4:] == [413, 403] and not gate._passing


@pytest.mark.parametrize("ending", ["sleep 1000", ":"])
def test_what_a_process_started_ends_with_it(ending: str, tmp_path: Path) -> None:
    said: list[str] = []
    child = Child("one", ["sh", "-c", f"sleep 1000 & echo $!; {ending}"], tmp_path / "log", listen=said.append)
    until = time.monotonic() + 20
    while not said and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(int(said[0]))
    child.end()
    while alive(int(said[0])) and time.monotonic() < until:  # its files are closed a little before it has ended
        time.sleep(0.05)
    assert not alive(int(said[0]))
