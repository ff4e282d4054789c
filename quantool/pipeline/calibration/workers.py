"""Shards in processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path

from quantool.errors import QuantoolError
from quantool.pipeline.calibration.shards import Job, Shard, run_shard
from quantool.pipeline.calibration.spread import RESTARTS, lost


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Runs shards in `count` new processes, which end with this one, however that ends."""

    count: int

    def __call__(self, job: Job, shards: Sequence[Shard]) -> Iterator[tuple[Shard, bytes]]:
        """Each shard's statistics as it ends; one whose process dies runs again in a new one.

        Raises:
            QuantoolError: a shard fails, or processes die again and again.
        """
        waiting = deque(shards)
        workers = [_Worker() for _ in range(min(self.count, len(shards)))]
        deaths = 0
        try:
            for worker in workers:
                worker.begin(job, waiting.popleft())
            while busy := {worker.connection: worker for worker in workers if worker.shard is not None}:
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]  # wait gives back what it was given
                    shard, answer = worker.result()
                    if answer is not None:
                        worker.give(waiting.popleft() if waiting else None)
                        yield shard, answer
                        continue
                    deaths += 1
                    if deaths > RESTARTS:
                        raise lost(deaths, sum(worker.shard is not None for worker in workers) + len(waiting))
                    workers.remove(worker)
                    workers.append(_Worker())
                    workers[-1].begin(job, shard)
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    """One process, seen from the one that started it. shard: what it runs, None while it has nothing to do."""

    def __init__(self) -> None:
        # A forked child would share the locks of ONNX Runtime's threads and could hang.
        context = multiprocessing.get_context("spawn")
        self.shard: Shard | None = None
        self.connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, Path.cwd()), daemon=True)
        self._process.start()
        theirs.close()  # so that its end of the connection closes when it dies

    def begin(self, job: Job, shard: Shard) -> None:
        """Send what the process needs once, and its first shard."""
        self.shard = shard
        with contextlib.suppress(OSError):  # a process that is dead already shows when its result is read
            self.connection.send(job)
        self.give(shard)

    def give(self, shard: Shard | None) -> None:
        """Send the next shard, if there is one."""
        self.shard = shard
        if shard is not None:
            with contextlib.suppress(OSError):
                self.connection.send(shard)

    def result(self) -> tuple[Shard, bytes | None]:
        """The shard's statistics, None where the process died.

        Raises:
            QuantoolError: what the shard failed with.
        """
        assert self.shard is not None
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.end()
            return self.shard, None
        if isinstance(answer, Exception):
            raise answer
        return self.shard, bytes(answer)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def threads_each(workers: int) -> int:
    """The threads of each of so many sessions that share this machine's processors."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // workers)


def _serve(connection: Connection, folder: Path) -> None:
    """The process: take the job once, then shards, until nobody sends any more."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):
        job = connection.recv()
        while True:
            connection.send(_answer(job, connection.recv()))


def _answer(job: Job, shard: Shard) -> bytes | Exception:
    try:
        return run_shard(job, shard)
    except QuantoolError as error:
        return error
    except Exception as error:  # which may not pickle
        return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone, in the middle of a shard too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
