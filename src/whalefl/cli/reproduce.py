"""`whalefl reproduce`: carry out the runs of a table or figure that are missing, and write its page."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from whalefl.cli.options import repeating_command, words
from whalefl.cli.progress import progress_of
from whalefl.config import Device
from whalefl.errors import require, require_one_of
from whalefl.experiments.carrying import Place, carry_out_all
from whalefl.experiments.catalogue import REPORTED, STUDIES
from whalefl.experiments.claims import write_claims
from whalefl.experiments.costs import Costs, measured_costs
from whalefl.experiments.headline import write_headline
from whalefl.experiments.pages import write_page
from whalefl.experiments.plan import Entry, Request, missing, plan
from whalefl.experiments.protocol import TASKS
from whalefl.experiments.status import write_status
from whalefl.experiments.store import Store
from whalefl.experiments.studies import Study
from whalefl.federation.methods import METHODS

ALL = "all"


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    results: Path
    work: Path
    claims: Path | None
    readme: Path | None
    device: str | None
    data_dir: Path | None
    only_tasks: str | None
    only_methods: str | None
    seeds: int | None
    jobs: int
    together: int
    time_limit: float | None
    commit: str | None


def reproduce_study(name: str, options: Options, plan_only: bool, report_only: bool) -> None:
    require_one_of("name", name, [*STUDIES, ALL])
    require(options.jobs >= 1, "jobs", options.jobs, "at least 1")
    require(options.together >= 1, "together", options.together, "at least 1")
    if options.seeds is not None:
        require(options.seeds >= 1, "seeds", options.seeds, "at least 1")
    studies = REPORTED if name == ALL else (STUDIES[name],)
    request = Request(
        tasks=_names("only-tasks", options.only_tasks, [setting.task for setting in TASKS]),
        methods=_names("only-methods", options.only_methods, list(METHODS)),
        seeds=options.seeds,
        device=_device(options.device or "cpu"),
        data_dir=None if options.data_dir is None else str(options.data_dir),
    )
    if report_only:
        require(options.results.is_dir(), "results", str(options.results), "a folder that is there")
    store = Store(options.results)
    if plan_only:
        _print_plan(_planned(studies, store, request), options.jobs)
        return
    if not report_only:
        start, entries = time.monotonic(), _planned(studies, store, request)
        _carry_out(entries, request, options)
        # What has ended may show what else is needed.
        known = {entry.run.identity for entry in entries}
        later = [entry for entry in _planned(studies, store, request) if entry.run.identity not in known]
        spent = time.monotonic() - start
        left = None if options.time_limit is None else max(0.0, options.time_limit - spent)
        _carry_out(later, request, replace(options, time_limit=left))
    _report(studies, store, options)


def _planned(studies: Sequence[Study], store: Store, request: Request, costs: Costs | None = None) -> list[Entry]:
    cells = [cell for study in studies for cell in (*study.cells, *study.later(store))]
    return plan(cells, store, measured_costs(store.folder) if costs is None else costs, request)


def _device(name: str) -> Device:
    require_one_of("device", name, get_args(Device))
    return cast(Device, name)


def _names(option: str, text: str | None, known: Sequence[str]) -> tuple[str, ...] | None:
    """The names that an option lists; None where it was left out."""
    if text is None:
        return None
    names = words(option, text)
    for name in names:
        require_one_of(option, name, known)
    return tuple(names)


def _carry_out(entries: Sequence[Entry], request: Request, options: Options) -> None:
    command = repeating_command()
    commit = options.commit or _commit()
    place = Place(options.results, options.work, options.jobs, options.together, options.time_limit, command, commit)
    waiting = missing(entries)
    if not waiting:
        return
    with progress_of({entry.run.name: entry.run.experiment for entry in waiting}) as listener:
        for number, run in enumerate(carry_out_all(waiting, request, place, listener), start=1):
            print(f"{number} of {len(waiting)}  {run.experiment.task} {run.name}", flush=True)
    left = sum(not Store(options.results).path(entry.run).exists() for entry in waiting)
    if left:
        print(f"{left} runs are left for lack of time, or since what they need is not there; the same command goes on")


def _report(studies: Sequence[Study], store: Store, options: Options) -> None:
    """The pages of these studies, and of all what is missing and what the paper's claims come to."""
    for study in studies:
        page = write_page(study, store, _whole_plan([study], store))
        print(f"page            {page}")
    write_status(store.folder, _whole_plan(REPORTED, store))
    if options.claims is not None:
        write_claims(options.claims, store)
        print(f"claims          {options.claims}")
    if options.readme is not None:
        write_headline(options.readme, store)
        print(f"headline        {options.readme}")


def _whole_plan(studies: Sequence[Study], store: Store) -> list[Entry]:
    return _planned(studies, store, Request(), Costs({}))


def _print_plan(entries: Sequence[Entry], jobs: int) -> None:
    """One line a run; cells of lower priority further down."""
    for number, entry in enumerate(entries, start=1):
        state = "done" if entry.done else f"{entry.seconds:6.0f} s"
        seed = entry.run.experiment.seed
        label = entry.labels[0] if entry.labels else "needed by another run"
        print(f"{number:4d}  {state:>8}  seed {seed:<3d}  {label}  ({entry.run.name})")
    waiting = missing(entries)
    seconds = sum(entry.seconds for entry in waiting)
    together = f"about {seconds / jobs:.0f} s with {jobs} side by side"
    print(f"{len(waiting)} of {len(entries)} runs are missing: {seconds:.0f} s one after another, {together}")


def _commit() -> str:
    """The commit of the code, with a mark if files were changed since."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
