"""What a device sends is checked before it touches a sum: names, shapes, types, finiteness, counts and norm."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, sqrt

import torch
from torch import Tensor

from whalefl.federation.rounds import Federation
from whalefl.flower.messages import Judged, Trained, Welcome, Wish
from whalefl.flower.parties import test_share
from whalefl.flower.refusal import Refused
from whalefl.flower.terms import Terms
from whalefl.subnet.slicing import Weights

_MOST_EXAMPLES = 10**9
_LONGEST_S = 10.0**7


def check_piece(sent: Weights, returned: Mapping[str, Tensor], most_change: float) -> None:
    """Raise unless `returned` is a plausible training result of the slice `sent`."""
    if returned.keys() != sent.keys():
        extra, missing = sorted(returned.keys() - sent.keys()), sorted(sent.keys() - returned.keys())
        raise Refused(f"a slice with wrong parameters: {extra[:3]} too many, {missing[:3]} missing")
    for name, tensor in returned.items():
        if tuple(tensor.shape) != tuple(sent[name].shape):
            raise Refused(f"{name} has the shape {tuple(tensor.shape)}; it must be {tuple(sent[name].shape)}")
        if tensor.dtype != sent[name].dtype:
            raise Refused(f"{name} is of type {tensor.dtype}; it must be {sent[name].dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{name} holds values that are not finite")
    moved = _norm({name: tensor.double() - sent[name].double() for name, tensor in returned.items()})
    allowed = most_change * max(1.0, _norm(sent))
    if not moved <= allowed:
        raise Refused(f"an update of norm {moved:.3g}; at most {allowed:.3g} is accepted")


def _norm(tensors: Weights) -> float:
    return sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def check_trained(federation: Federation, reply: Trained, round: int, level: int) -> None:
    """Raise unless a reply belongs to the order it answers."""
    if reply.round != round:
        raise Refused(f"a reply for round {reply.round}; round {round} was ordered")
    if reply.level != level:
        raise Refused(f"a slice of level {reply.level}; level {level} was ordered")
    if not isfinite(reply.loss):
        raise Refused(f"a loss of {reply.loss}")
    if not 0 <= reply.computing_s < _LONGEST_S:
        raise Refused(f"a computing time of {reply.computing_s} s")
    check_wish(federation, reply.wish)


def check_wish(federation: Federation, wish: Wish) -> None:
    levels = federation.settings.ladder.levels
    if not 1 <= wish.level <= levels:
        raise Refused(f"a wish for level {wish.level}; it must be between 1 and {levels}")
    if not 0 < wish.unit_s < _LONGEST_S:
        raise Refused(f"an expected time of {wish.unit_s} s for the smallest slice")


def check_welcome(federation: Federation, terms: Terms, reply: Welcome, registered: int | None) -> None:
    """Raise unless a device is one of the fleet, the one it is registered as, and has plausible data.

    Where devices hold shares of one data set, the server knows what each one has.
    """
    if not 0 <= reply.device < len(federation.members):
        raise Refused(f"device {reply.device}; the fleet has the devices 0 to {len(federation.members) - 1}")
    if registered is not None and reply.device != registered:
        raise Refused(f"it says it is device {reply.device}, but its key is registered for device {registered}")
    if not 1 <= reply.examples <= _MOST_EXAMPLES:
        raise Refused(f"{reply.examples} examples")
    check_owned(federation, reply.owned)
    if terms.data == "shares":
        share = federation.members[reply.device].share
        if reply.examples != len(share.indices) or reply.owned not in (None, share.owned):
            raise Refused(f"{reply.examples} examples of the labels {reply.owned}, which is not its share")
    check_wish(federation, reply.wish)


def check_judged(federation: Federation, terms: Terms, reply: Judged, device: int) -> None:
    """Raise unless a score is possible, and made on the device's part of the test set where that is known."""
    if not (0 <= reply.right <= reply.predictions <= _MOST_EXAMPLES and reply.predictions > 0):
        raise Refused(f"{reply.right} of {reply.predictions} predictions right")
    if not (isfinite(reply.loss) and reply.loss >= 0):
        raise Refused(f"a test loss of {reply.loss}")
    if terms.data == "shares":
        each = federation.task.test.targets[0].numel()
        known = each * len(test_share(federation, device))
        if reply.predictions != known:
            raise Refused(f"{reply.predictions} predictions; its part of the test set has {known}")


def check_owned(federation: Federation, owned: tuple[int, ...] | None) -> None:
    if not federation.settings.aggregation.label_ownership:
        return
    if not owned or list(owned) != sorted(set(owned)) or owned[0] < 0 or owned[-1] >= federation.task.classes:
        raise Refused(f"owned labels that are not a rising list from 0 to {federation.task.classes - 1}")
