"""Work in several processes at once: what they report is heard here, and nobody outlives the one who asked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from whalefl.leash import die_with_parent
from whalefl.values import RoundRecord

Listener = Callable[[str, RoundRecord], None]
"""Is told the name of a run and each of its rounds as it ends."""

Reports = SimpleQueue[tuple[str, RoundRecord]]

_LAST_WORDS_S = 5.0
_PAUSE_S = 0.05


Item = TypeVar("Item")


def in_batches(items: Sequence[Item], key: Callable[[Item], object], most: int) -> list[list[Item]]:
    """Items in batches of one key and of at most so many, in the order in which each batch's first one comes."""
    batches: list[list[Item]] = []
    for item in items:
        open_ones = (batch for batch in batches if len(batch) < most and key(batch[0]) == key(item))
        batch = next(open_ones, None)
        if batch is None:
            batches.append([item])
        else:
            batch.append(item)
    return batches


Work = TypeVar("Work")


def side_by_side(
    work: Callable[[Work, Listener], object], upcoming: Callable[[], Work | None], workers: int, listener: Listener
) -> Iterator[Work]:
    """Carry out what `upcoming` hands out, `workers` at a time in processes of their own; yields each as it ends.

    `upcoming` is asked whenever a place is free. None means that there is nothing to start now: it is asked again when
    something has ended, and all is done when nothing is running either.
    """
    if workers == 1:
        while (one := upcoming()) is not None:
            work(one, listener)
            yield one
        return
    context = multiprocessing.get_context("spawn")
    queue: Reports = context.SimpleQueue()
    running: dict[Future[None], Work] = {}
    with _forwarding(queue, listener), ProcessPoolExecutor(workers, context, _join, (queue,)) as pool:
        try:
            while True:
                while len(running) < workers and (one := upcoming()) is not None:
                    running[pool.submit(_work_here, work, one)] = one
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    yield running.pop(future)
        except BaseException:
            _stop(list(pool._processes.values()))
            pool.shutdown(cancel_futures=True)
            raise


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Let workers put down what they are doing, and then end them whatever they are doing.

    It is the processes that are waited for: as soon as one has ended, the pool calls all that was asked of it failed.
    """
    for process in processes:
        process.terminate()
    until = time.monotonic() + _LAST_WORDS_S
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    for process in processes:
        process.kill()


@contextmanager
def _forwarding(queue: Reports, listener: Listener) -> Iterator[None]:
    """Hand what workers put into the queue to the listener, until the block ends and the queue is empty.

    A listener that fails hears no more, and what it raised is raised at the end: workers must not wait for it. Nothing
    is put into the queue to end it, since a worker that was killed may have left it locked.
    """
    failed: list[BaseException] = []
    ended = Event()

    def forward() -> None:
        while not (ended.wait(_PAUSE_S) and queue.empty()):
            while not queue.empty():
                try:
                    item = queue.get()
                    if not failed:
                        listener(*item)
                except BaseException as error:
                    failed.append(error)

    thread = Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_WORDS_S)
    if failed:
        raise failed[0]


_queue: Reports
_working = _ending = False


def _join(queue: Reports) -> None:
    """In a worker process: remember where to report; end with the first process, and when that says so."""
    global _queue
    _queue = queue
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    """Interrupt the work, once, and end after it; at once if there is none."""
    global _ending
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is being put down must not be interrupted
    _ending = True
    if _working:
        raise KeyboardInterrupt
    os._exit(0)


def _work_here(work: Callable[[Work, Listener], object], one: Work) -> None:
    global _working
    _working = True
    try:
        work(one, lambda name, record: _queue.put((name, record)))
    finally:
        _working = False
        if _ending:
            os._exit(0)
