"""A method is a pair: which indices a device gets (extraction) and how big a part (policy)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whalefl.errors import require_one_of
from whalefl.scheduling.policies import Policy, Whale, fixed, full, uniform
from whalefl.scheduling.replay import ReplaySettings, replay_of
from whalefl.subnet.plans import EXTRACTIONS, Extraction

METHODS = {
    "fedavg": ("prefix", "full"),
    "heterofl": ("prefix", "fixed"),
    "feddropout": ("random", "fixed"),
    "fedrolex": ("rolling", "fixed"),
    "whale": ("prefix", "whale"),
    "whaledropout": ("random", "whale"),
    "whalerolex": ("rolling", "whale"),
}
"""The seven methods of the paper by name."""

POLICIES = ("full", "fixed", "whale", "whale-se", "whale-te", "random", "random-once", "replay")


@dataclass(frozen=True)
class Method:
    """Extraction and policy; neither knows of the other."""

    extraction: Extraction
    policy: Policy


def check_method(name: str) -> tuple[str, str]:
    """The extraction and policy that a name stands for: one of METHODS, or any pair written `extraction+policy`."""
    if "+" not in name:
        require_one_of("method", name, [*METHODS, "EXTRACTION+POLICY"])
        return METHODS[name]
    extraction, _, policy = name.partition("+")
    require_one_of("method's extraction", extraction, EXTRACTIONS)
    require_one_of("method's policy", policy, POLICIES)
    return extraction, policy


def named_like(method: str) -> str:
    """The one of METHODS whose presets a method takes over: with its extraction, and the policy it is a part of."""
    extraction, policy = check_method(method)
    whole = "whale" if policy in ("whale-se", "whale-te") else policy
    return next((name for name, pair in METHODS.items() if pair == (extraction, whole)), method)


def make_method(name: str, whale: Whale | None = None, seed: int = 0, replay: ReplaySettings | None = None) -> Method:
    """The method called `name`; `whale` sets the adaptive policies, `replay` the replayed one, `seed` what is drawn."""
    extraction, policy = check_method(name)
    return Method(EXTRACTIONS[extraction], _policy(policy, whale or Whale(), seed, replay or ReplaySettings()))


def _policy(name: str, whale: Whale, seed: int, replay: ReplaySettings) -> Policy:
    if name == "full":
        return full()
    if name == "fixed":
        return fixed()
    if name in ("random", "random-once"):
        return uniform(seed, once=name == "random-once")
    if name == "replay":
        return replay_of(replay, seed)
    if name == "whale":
        return replace(whale, parts="both")
    return replace(whale, parts="system" if name == "whale-se" else "training")
