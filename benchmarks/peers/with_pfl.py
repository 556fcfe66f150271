"""The work in pfl's simulation: one process a core by torchrun, federated averaging on users in memory.

torchrun --nproc_per_node 2 with_pfl.py WORK ROUNDS
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from work import BATCH, CLIP, CNN, LR, MOMENTUM, WEIGHT_DECAY, WORKS, Gate, examples

work, rounds = WORKS[sys.argv[1]], int(sys.argv[2])


class Model(CNN):
    """The CNN with what pfl asks of a model."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        loss = F.cross_entropy(self(inputs), targets, reduction="sum").item()
        return {"loss": Weighted(loss, len(targets))}


class BetweenRounds(TrainingProcessCallback):
    """The first process waits for its turn, the others for the first."""

    def __init__(self) -> None:
        self.gate = Gate()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._pass(last=False)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._pass(last=central_iteration == rounds - 1)
        return False, Metrics()

    def _pass(self, last: bool) -> None:
        if torch.distributed.get_rank() == 0:
            self.gate.pass_(last)
        torch.distributed.barrier()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # pfl samples users from it, the same in every process
    users = {client: PyTorchTensorDataset(examples(client), user_id=str(client)) for client in range(work.clients)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    model = Model(work.channels)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            model,
            lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
            torch.optim.SGD(model.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH, local_max_grad_norm=CLIP
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[BetweenRounds()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
