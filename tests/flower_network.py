"""Real federations for tests, in a folder of their own that is gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from in_process import digits_deployment
from whalefl.flower.terms import Deployment
from whalefl.flower.testbed.network import Network, running, short_folder


@contextmanager
def network(deployment: Deployment, host: str = "127.0.0.1") -> Iterator[Network]:
    with short_folder() as root, running(root, deployment, host) as net:
        yield net


def learning(devices: int, method: str, **terms: object) -> Deployment:
    """Digits that is learnt in a few rounds."""
    return digits_deployment(
        method,
        rounds=40,
        target=0.9,
        fleet={"groups": [{"kind": "MacBookPro2018", "count": devices}]},
        partition={"kind": "iid"},
        training={"iterations": 10, "batch": 32, "lr": 0.05},
        whale={"window": 3, "se_reference": "full", "fisher": "unit"},
        federation={"deadline_s": 60.0, "wait_s": 120.0, "quorum": devices, "stop_at_target": True, **terms},
    )
