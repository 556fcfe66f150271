"""The global model's accuracy: with the server's own data, or from sums that devices return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from whalefl.federation.engine import whole_model
from whalefl.federation.evaluation import Moments, Score, batch_norms, evaluate
from whalefl.federation.rounds import Federation, State
from whalefl.federation.simulation import federation_calibration
from whalefl.flower.blocks import from_block, most_block_bytes, to_block
from whalefl.flower.checks import check_judged
from whalefl.flower.messages import Gather, Gathered, Judge, Judged, from_json, to_json
from whalefl.flower.peers import Peer
from whalefl.flower.post import Letter, Post
from whalefl.flower.refusal import Refused
from whalefl.flower.terms import Terms
from whalefl.flower.transport import Arrival

_MOST = 10**12
_LARGEST = 1e30  # of a mean or a mean square


def score_on_server(federation: Federation, state: State) -> Score:
    """As the simulator does it: statistics over samples of every share, then the whole test set."""
    task = federation.task
    return evaluate(task, whole_model(task), state.weights, federation_calibration(federation))


def score_on_devices(
    federation: Federation, terms: Terms, state: State, peers: Sequence[Peer], post: Post
) -> Score | None:
    """Pool the batch-norm sums of all devices that can run the whole model, then their scores; None if none can."""
    channels = {name: len(norm.weight) for name, norm in batch_norms(federation.task.build(federation.task.full))}
    block, able = to_block(state.weights), list(peers)
    for number in range(1, (terms.passes if channels else 1) + 1):
        able, pooled = _gathered(channels, state.round, number, block, able, post)
        if not able:
            return None
        block = to_block(statistics_of(pooled))
    return _judged(federation, terms, state.round, block, able, post)


def statistics_of(pooled: Mapping[str, Moments]) -> dict[str, Tensor]:
    """The statistics of every batch norm, as they are sent."""
    tensors = {}
    for name, moments in pooled.items():
        tensors[f"{name}/mean"], tensors[f"{name}/variance"] = moments.statistics()
    return tensors


def _gathered(
    channels: Mapping[str, int], round: int, number: int, block: bytes, peers: Sequence[Peer], post: Post
) -> tuple[list[Peer], dict[str, Moments]]:
    """One pass: who could take part, and the sums of all of them."""
    able: list[Peer] = []
    pooled: dict[str, Moments] = {}

    def take(letter: Letter, arrival: Arrival) -> None:
        try:
            reply = from_json(arrival.body, Gathered)
            moments = checked_moments(channels, reply, from_block(arrival.block)) if reply.able and channels else {}
        except Refused as refusal:
            post.journal.note("refused", round, letter.peer.device, arrival.node, str(refusal))
            return
        if reply.able:
            able.append(letter.peer)
        for name, found in moments.items():
            pooled[name] = pooled[name] + found if name in pooled else found

    body, most = to_json(Gather(round, number)), most_block_bytes(4 * sum(channels.values()))
    post.exchange("gather", round, [Letter(peer, body, block, most) for peer in peers], take)
    return able, pooled


def checked_moments(channels: Mapping[str, int], reply: Gathered, tensors: Mapping[str, Tensor]) -> dict[str, Moments]:
    """The sums that a device returned; raises unless they are those of this model's batch norms."""
    wanted = {f"{name}/{part}": size for name, size in channels.items() for part in ("total", "squares")}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if reply.counts.keys() != channels.keys() or shapes != {name: (size,) for name, size in wanted.items()}:
        raise Refused("batch-norm sums that are not those of this model")
    if any(not 1 <= count <= _MOST for count in reply.counts.values()):
        raise Refused("batch-norm sums over an impossible number of values")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64 or not bool((tensor.abs() <= _LARGEST * reply.counts[layer_of(name)]).all()):
            raise Refused(f"{name} is not made of float64 numbers of a plausible size")
    return {
        name: Moments(count, tensors[f"{name}/total"], tensors[f"{name}/squares"])
        for name, count in reply.counts.items()
    }


def layer_of(name: str) -> str:
    return name.rpartition("/")[0]


def _judged(
    federation: Federation, terms: Terms, round: int, block: bytes, peers: Sequence[Peer], post: Post
) -> Score | None:
    replies: list[Judged] = []

    def take(letter: Letter, arrival: Arrival) -> None:
        try:
            reply = from_json(arrival.body, Judged)
            check_judged(federation, terms, reply, letter.peer.device)
        except Refused as refusal:
            post.journal.note("refused", round, letter.peer.device, arrival.node, str(refusal))
            return
        replies.append(reply)

    body = to_json(Judge(round))
    post.exchange("judge", round, [Letter(peer, body, block, most_block_bytes(0)) for peer in peers], take)
    predictions = sum(reply.predictions for reply in replies)
    if not predictions:
        return None
    right, loss = sum(reply.right for reply in replies), sum(reply.loss for reply in replies)
    return Score(right / predictions, loss / predictions)
