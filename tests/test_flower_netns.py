"""A real federation in network namespaces with shaped links and quotas, where this machine allows them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_network import learning, network
from whalefl.flower.testbed.bench import lab
from whalefl.flower.testbed.namespaces import Ground, ground, shape, why_not
from whalefl.flower.testbed.quotas import quotas

REASON = why_not()
pytestmark = [pytest.mark.netns, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.fixture
def four_places() -> Iterator[Ground]:
    with ground(4) as built:
        yield built


def test_four_devices_train_digits_to_its_target_in_namespaces(four_places: Ground) -> None:
    with network(learning(4, "whale"), four_places.address) as net:
        net.start_server()
        for index, (place, mbps) in enumerate(zip(four_places.places, (80, 20, 10, 80), strict=True)):
            shape(place, mbps)
            net.start_device(index, place.enter)
        net.wait_for(net.finished, 500)
        assert net.records()[-1]["accuracy"] >= 0.9
        assert all(len(record["devices"]) == 4 for record in net.records())


def test_a_slow_link_completes_or_is_dropped_and_holds_nobody_up(four_places: Ground) -> None:
    """0.84 MB each way take 7 s at 1 Mbit/s and 68 s at 0.1: one device makes the deadline, the other never does."""
    deadline_s = 40.0
    terms = {"deadline_s": deadline_s, "quorum": 2, "stop_at_target": False}
    deployment = learning(3, "fedavg", **terms)
    with network(deployment, four_places.address) as net:
        net.start_server()
        for index, mbps in enumerate((80, 1, 80)):
            shape(four_places.places[index], mbps)
            net.start_device(index, four_places.places[index].enter)
        net.wait_for(lambda: len(net.records()) >= 2, 300)
        assert [d["device"] for d in net.records()[1]["devices"]] == [0, 1, 2]
        shape(four_places.places[1], 0.1)
        shaped = len(net.records())
        net.wait_for(lambda: len(net.records()) >= shaped + 4, 300)
        later = net.records()[shaped + 1 :]
        assert all({0, 2} <= {d["device"] for d in record["devices"]} for record in later)
        assert all(record["round_s"] < deadline_s + 3 for record in later)
        assert min(record["round_s"] for record in later) < deadline_s / 2  # the others do not wait while it is busy
        assert [event for event in net.events() if event["device"] == 1 and event["what"] == "late"]


def test_everything_is_taken_away_whatever_happens() -> None:
    with pytest.raises(RuntimeError, match="something"), lab((0.5, 0.5)) as place:
        names = [spot.namespace for spot in place.ground.places]
        sleeper = subprocess.Popen(["sleep", "1000"])
        place.quotas[0].take(sleeper.pid)
        assert all(name in namespaces() for name in names)
        raise RuntimeError("something")
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert not any(name in namespaces() for name in names) and place.ground.places[0].outer not in links
    assert sleeper.wait(5) == -9 and not place.quotas[0].path.exists()


def test_a_link_is_as_fast_as_it_is_shaped(four_places: Ground) -> None:
    place = four_places.places[0]
    shape(place, 8.0)
    listen = f"import socket; s = socket.create_server(('{four_places.address}', 29999)); c, _ = s.accept()"
    server = subprocess.Popen(
        [shutil.which("python3") or "python3", "-c", f"{listen}\nwhile c.recv(65536): pass\nc.send(b'x')"]
    )
    send = (
        f"import socket, time; time.sleep(1); c = socket.create_connection(('{four_places.address}', 29999)); "
        "t = time.time(); c.sendall(bytes(2_000_000)); c.shutdown(1); c.recv(1); print(time.time() - t)"
    )
    done = subprocess.run([*place.enter, "python3", "-c", send], capture_output=True, text=True, check=True)
    server.wait(10)
    assert float(done.stdout) == pytest.approx(2.0, rel=0.2)


def test_a_quota_slows_a_process_down() -> None:
    work = "import time; t = time.process_time(); s = time.time()\nwhile time.process_time() - t < 0.4: pass\n"
    with quotas(1) as (quota,):
        quota.set(0.2)
        process = subprocess.Popen(
            ["python3", "-c", f"{work}print(time.time() - s)"], stdout=subprocess.PIPE, text=True
        )
        quota.take(process.pid)
        out, _ = process.communicate()
    assert 1.2 < float(out) < 3.5


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_testbed_leaves_is_taken_away(how: signal.Signals) -> None:
    script = (
        "import time\n"
        "from whalefl.flower.deploy.processes import end_on_signals\n"
        "from whalefl.flower.testbed.bench import lab\n"
        "end_on_signals()\n"
        "with lab((0.5,)) as place:\n"
        "    print(place.ground.places[0].namespace, place.quotas[0].path, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    namespace, group = process.stdout.readline().split()
    assert namespace in namespaces() and Path(group).exists()
    process.send_signal(how)
    process.communicate()
    if how == signal.SIGKILL:  # nobody can clean up after that but the next one
        assert namespace in namespaces()
        with lab((0.5,)):
            pass
    assert namespace not in namespaces() and not Path(group).exists()


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
