"""A real federation on Flower, over TLS on loopback: the documented commands, and what goes wrong with them."""

from __future__ import annotations

import json
import ssl
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file

from flower_network import learning, network
from in_process import digits_deployment
from whalefl.execution import prepared
from whalefl.federation.engine import PlainEngine
from whalefl.federation.rounds import Federation
from whalefl.federation.simulation import rounds_of
from whalefl.flower.deploy.keys import make_device_key, write_secret
from whalefl.flower.terms import Deployment
from whalefl.flower.testbed.network import Network

TOLERANCE = 1e-6
EVIL = Path(__file__).parent / "evil_device.py"


def two_devices(**more: object) -> Deployment:
    groups = [{"kind": "MacBookPro2018", "count": 1}, {"kind": "JetsonTX2", "count": 1, "fixed_level": 3}]
    base = {"rounds": 3, "fleet": {"groups": groups}, "partition": {"kind": "iid"}}
    return digits_deployment("heterofl", **{**base, **more})


def test_two_devices_train_digits_over_tls_and_equal_the_simulator() -> None:
    deployment = two_devices(federation={"deadline_s": 40.0, "wait_s": 60.0, "quorum": 2})
    with network(deployment) as net:
        net.start_server()
        for index in range(2):
            net.start_device(index)
        net.wait_for(lambda: len(net.records()) >= 1, 100)
        check_only_devices_may_enter(net)
        net.wait_for(net.finished, 60)
        assert [record["round"] for record in net.records()] == [1, 2, 3]
        assert net.processes["server"].wait(20) == 0
        assert "Traceback" not in net.told()
        check_equal_to_simulator(deployment, net)


def check_only_devices_may_enter(net: Network) -> None:
    """Flower's SuperLink would let anybody start a run."""
    settings = net.server_folder.settings()
    trusted = ssl.create_default_context(cafile=str(net.server_folder.authority))
    with httpx.Client(base_url=f"https://127.0.0.1:{settings.port}", verify=trusted) as client:
        assert client.post("/v1/control/list-runs", content=b"").status_code == 403
        assert client.post("/v1/runtime/acquire-task", content=b"").status_code == 403
        for detour in ("%2e%2e/control/list-runs", "..%2fcontrol/list-runs", "pull-messages/%2e%2e/x", "", "a/b"):
            assert client.post(f"/v1/fleet/{detour}", content=b"").status_code == 403
        assert 400 <= client.post("/v1/fleet/pull-messages", content=b"").status_code < 500  # passed on, and refused
        too_large = bytes(1024 * settings.chunk_kb + 1_000_000)
        assert client.post("/v1/fleet/push-object", content=too_large).status_code == 413
    with httpx.Client(base_url=f"https://127.0.0.1:{settings.port}") as stranger, pytest.raises(httpx.ConnectError):
        stranger.post("/v1/fleet/pull-messages", content=b"")


def one_after_another(federation: Federation) -> PlainEngine:
    """The simulator's engine that trains every device alone, as devices do."""
    return PlainEngine(federation.task, federation.settings.training, largest=1)


def check_equal_to_simulator(deployment: Deployment, net: Network) -> None:
    weights = load_file(net.server_folder.run / "model.safetensors")
    experiment = deployment.experiment
    federation = prepared(experiment)
    *_, last = rounds_of(federation, one_after_another(federation))
    for name, expected in last.state.weights.items():
        assert float((weights[name] - expected).abs().max()) < TOLERANCE


@pytest.mark.slow
def test_four_devices_train_digits_to_its_target_over_loopback() -> None:
    with network(learning(4, "whale")) as net:
        net.start_server()
        for index in range(4):
            net.start_device(index)
        net.wait_for(net.finished, 400)
        records = net.records()
        assert records[-1]["accuracy"] >= 0.9
        assert all(len(record["devices"]) == 4 for record in records)
        assert {d["level"] for d in records[0]["devices"]} == {5}
        assert not [event for event in net.events() if event["what"] != "failed"]


@pytest.mark.slow
def test_a_device_that_is_killed_is_dropped_and_rejoins() -> None:
    deployment = learning(3, "fedavg", deadline_s=20.0, quorum=2, stop_at_target=False)
    with network(deployment) as net:
        net.start_server()
        for index in range(3):
            net.start_device(index)
        net.wait_for(lambda: len(net.records()) >= 1, 150)
        assert len(net.records()[0]["devices"]) == 3
        log = net.device_folder(2).log
        begun = log.read_text().count("Receiving: train")
        net.wait_for(lambda: log.read_text().count("Receiving: train") > begun, 60)
        net.kill("device-2")
        killed_in = len(net.records()) + 1
        net.wait_for(lambda: len(net.records()) >= killed_in, 60)
        closed = net.records()[killed_in - 1]
        assert {device["device"] for device in closed["devices"]} == {0, 1}
        assert closed["round_s"] < 20.0 + 3.0
        assert [event for event in net.events() if event["device"] == 2 and event["what"] in ("late", "failed")]
        net.start_device(2)
        net.wait_for(lambda: len(net.records()[-1]["devices"]) == 3, 200)
        window = json.loads((net.device_folder(2).path / "memory.json").read_text())
        assert window["after"]["consumed"] > 0


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_and_no_round_is_lost_or_done_twice() -> None:
    deployment = two_devices(rounds=6, federation={"deadline_s": 60.0, "wait_s": 120.0, "quorum": 2})
    with network(deployment) as net:
        net.start_server()
        for index in range(2):
            net.start_device(index)
        for rounds in (2, 4):
            net.wait_for(lambda rounds=rounds: len(net.records()) >= rounds, 200)
            time.sleep(3)  # into the next round
            net.kill("server")
            net.start_server()
        net.wait_for(net.finished, 300)
        assert [record["round"] for record in net.records()] == [1, 2, 3, 4, 5, 6]
        assert "going on after round" in net.server_folder.log.read_text()
        check_equal_to_simulator(deployment, net)


@pytest.mark.slow
def test_devices_that_do_not_keep_to_the_agreement_change_nothing() -> None:
    groups = [{"kind": "MacBookPro2018", "count": 7}]
    deployment = digits_deployment(
        "fedavg",
        rounds=2,
        fleet={"groups": groups},
        partition={"kind": "iid"},
        federation={"deadline_s": 45.0, "wait_s": 45.0},
    )
    evil = {2: "nan", 3: "shapes", 4: "level", 5: "size", 6: "version"}
    with network(deployment) as net:
        stranger = make_device_key()
        write_secret(net.device_folder(1).key, stranger.key)  # a key that nobody registered
        net.start_server()
        for index in range(7):
            if index in evil:
                folder = str(net.device_folder(index).path)
                net.start(f"device-{index}", [sys.executable, str(EVIL), evil[index], folder])
            else:
                net.start_device(index)
        net.wait_for(net.finished, 500)
        assert all([d["device"] for d in record["devices"]] == [0] for record in net.records())
        whys = {event["device"]: event["why"] for event in net.events() if event["what"] == "refused"}
        assert "not finite" in whys[2] and "has the shape" in whys[3] and "level 5" in whys[4]
        assert "the server has whalefl" in whys[None] and "it must be 9.9.9" in whys[None]  # in the device's words
        assert [event for event in net.events() if event["device"] == 5 and event["what"] != "refused"]
        assert "413" in net.server_folder.log.read_text() + net.device_folder(5).log.read_text()
        assert not [event for event in net.events() if event["device"] == 1]
        assert "Failed to activate SuperNode" in net.device_folder(1).log.read_text()
        weights = load_file(net.server_folder.run / "model.safetensors")
    federation = prepared(deployment.experiment)
    only_0 = replace(federation, members=federation.members[:1])
    *_, last = rounds_of(only_0, one_after_another(only_0))
    for name, expected in last.state.weights.items():
        assert float((weights[name] - expected).abs().max()) < TOLERANCE
