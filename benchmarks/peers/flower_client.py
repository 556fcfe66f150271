"""A client of the work in Flower, as in its PyTorch quickstart; a module of its own, since Ray's actors import it."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, CLIP, CNN, LR, MOMENTUM, WEIGHT_DECAY, WORKS, examples

app = ClientApp()


@cache
def dataset(client: int) -> TensorDataset:
    """Made once in each actor, as a loaded data set would be."""
    return TensorDataset(*examples(client))


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = CNN(WORKS[message.content["config"]["work"]].channels)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    own = dataset(int(context.node_config["partition-id"]))
    total = 0.0
    for inputs, targets in DataLoader(own, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        loss: Tensor = F.cross_entropy(model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"train_loss": total, "num-examples": len(own)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
