"""The work in Flower's simulation: Ray with one actor a core, and the message API as in Flower's PyTorch quickstart.

python with_flower.py WORK ROUNDS
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import flower_client
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import CNN, CORES, WORKS, Gate

name, rounds = sys.argv[1], int(sys.argv[2])
work = WORKS[name]
server_app = ServerApp()


class Strict(FedAvg):
    """Federated averaging that stops where a client fails: an unfinished round must not count as a fast one."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if len(replies) < work.clients or any(reply.has_error() for reply in replies):
            raise RuntimeError("a client failed")
        return super().aggregate_train(server_round, replies)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    gate = Gate()

    def between_rounds(number: int, arrays: ArrayRecord) -> None:
        gate.pass_(last=number == rounds)

    Strict(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients).start(
        grid=grid,
        initial_arrays=ArrayRecord(CNN(work.channels).state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"work": name}),
        evaluate_fn=between_rounds,
    )


if __name__ == "__main__":
    run_simulation(
        server_app,
        flower_client.app,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": CORES, "num_gpus": 0},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
