"""The federation as each party sees it: the server, and a device with its own data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whalefl.config import Experiment
from whalefl.errors import WhaleflError
from whalefl.execution import prepared
from whalefl.federation.rounds import Federation
from whalefl.federation.simulation import enrol
from whalefl.flower.blank import blank_task
from whalefl.flower.terms import Deployment
from whalefl.tasks.catalogue import load_task
from whalefl.tasks.partition import Share
from whalefl.tasks.task import Task


def federation_on_server(deployment: Deployment) -> Federation:
    """With the task's data, or with no data at all where devices have their own and do the scoring."""
    if deployment.terms.data == "shares":
        return prepared(deployment.experiment)
    experiment = deployment.experiment
    if deployment.terms.evaluation == "server":
        task = _task(experiment)
    else:
        task = blank_task(experiment.task, experiment.norm) or _task(experiment)
    return _enrolled(experiment, task)


def federation_on_device(deployment: Deployment) -> Federation:
    """With the device's share of the training set in it, or all of the device's own task."""
    if deployment.terms.data == "shares":
        return prepared(deployment.experiment)
    return _enrolled(deployment.experiment, _task(deployment.experiment))


def test_share(federation: Federation, device: int) -> NDArray[np.int64]:
    """The test examples that a device scores on, where devices hold shares of one data set."""
    return np.arange(device, len(federation.task.test), len(federation.members))


def _task(experiment: Experiment) -> Task:
    data_dir = None if experiment.data_dir is None else Path(experiment.data_dir)
    return load_task(experiment.task, data_dir, experiment.norm)


def _enrolled(experiment: Experiment, task: Task) -> Federation:
    """All of the task's examples in the place of every share: each party knows its own only."""
    if task.masked is None and task.train.targets.ndim != 1:
        raise WhaleflError(f"task is {experiment.task!r}, whose targets are not one label an example")
    share = Share(np.arange(len(task.train)), tuple(np.unique(task.train.targets.cpu().numpy()).tolist()))
    shares = [share] * len(experiment.fleet)
    method, seeds = experiment.make_method(), experiment.all_seeds()
    return enrol(task, method, experiment.fleet, experiment.weather, experiment, seeds, shares)
