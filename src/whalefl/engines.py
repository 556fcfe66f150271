"""Which engine trains an experiment, and which experiments one engine can train."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import torch

from whalefl.config import Experiment
from whalefl.errors import WhaleflError
from whalefl.federation.engine import Engine, PlainEngine, use_precision
from whalefl.federation.workers import WorkersEngine, can_fork, cores
from whalefl.tasks.task import Task


def make_engine(experiment: Experiment, task: Task) -> Engine:
    """The engine an experiment asks for; `auto` takes the fastest one for its device."""
    use_precision(experiment.precision)
    wanted = experiment.engine
    on_gpu = experiment.device == "cuda"
    if wanted == "auto":
        # A process that was started to run beside others leaves the other cores to them.
        alone = multiprocessing.parent_process() is None
        several = alone and can_fork() and len(cores()) > 1
        wanted = "graphs" if on_gpu else "workers" if several else "plain"
    if wanted == "plain":
        return PlainEngine(task, experiment.training, experiment.precision)
    if wanted == "workers":
        if on_gpu:
            raise WhaleflError("engine is 'workers'; it must be 'plain', 'graphs' or 'auto' where device is 'cuda'")
        return WorkersEngine(task, experiment.training, precision=experiment.precision)
    if not on_gpu:
        raise WhaleflError("engine is 'graphs'; it must be 'plain', 'workers' or 'auto' where device is not 'cuda'")
    from whalefl.federation.graphs import GraphEngine

    return GraphEngine(task, experiment.training, experiment.precision)


_recorded: tuple[object, Engine] | None = None


def engine_of(experiment: Experiment, task: Task) -> Engine:
    """A new engine; but the steps that a GPU has recorded serve the next run in this process if it trains alike."""
    global _recorded
    if experiment.device != "cuda":
        return make_engine(experiment, task)
    key = training_key(experiment)
    if _recorded is None or _recorded[0] != key:
        _recorded = None
        torch.cuda.empty_cache()  # what was recorded before leaves memory that nothing recorded later could use
        _recorded = (key, make_engine(experiment, task))
    return _recorded[1]


def training_key(experiment: Experiment) -> object:
    """Experiments with the same key train alike: one engine serves them all."""
    return (
        (experiment.task, experiment.data_dir, experiment.norm, experiment.evaluation.on),
        (experiment.device, experiment.engine, experiment.precision),
        replace(experiment.training, lr=1.0),  # the rate comes with every order
    )
