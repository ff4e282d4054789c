"""Shards on a running Dask cluster; the only importer of `distributed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from quantool.errors import DataError, ModelError, OptionError
from quantool.pipeline.calibration.shards import Job, Shard, run_shard, versions
from quantool.pipeline.calibration.spread import ProcessesLostError

#: seconds to wait for the scheduler, and for its first worker
PATIENCE: Final = 30


@dataclass(frozen=True, slots=True)
class Cluster:
    """Runs shards as tasks of the scheduler at `address`; Dask runs the tasks of a worker that dies elsewhere."""

    address: str

    def slots(self) -> int:
        """How many tasks the cluster runs at a time."""
        with _client(self.address) as client:
            return max(1, sum(int(threads) for threads in client.nthreads().values()))

    def __call__(self, job: Job, shards: Sequence[Shard]) -> Iterator[tuple[Shard, bytes]]:
        """Each shard's statistics as it ends.

        Raises:
            ProcessesLostError: Dask gave up on a task, or lost the job with the workers that held it.
        """
        from distributed import CancelledError, KilledWorker, as_completed

        with _client(self.address) as client:
            # Copies on all workers, so that one may die; it is large, and every task needs it.
            sent = client.scatter(job, broadcast=True)
            futures = {client.submit(run_shard, sent, shard, pure=False): shard for shard in shards}
            try:
                for future in as_completed(futures, loop=client.loop):
                    yield futures.pop(future), future.result()
            except (KilledWorker, CancelledError) as error:
                raise ProcessesLostError(f"{type(error).__name__}: {error}") from error
            except (DataError, ModelError) as error:
                error.fix = f"{error.fix} Workers read data and external weights under the path that is given here."
                raise


@contextmanager
def _client(address: str) -> Iterator[Any]:  # the package has no types
    """A connection to a scheduler that has a worker, all of which can run a shard."""
    try:
        from distributed import Client
    except ImportError as error:
        raise OptionError(
            "no-distributed",
            f"--scheduler needs the package 'distributed': {error}",
            where="--scheduler",
            fix="pip install 'quantool[distributed]', or use --workers on this machine.",
        ) from error
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise OptionError(
            "no-scheduler",
            f"no Dask scheduler answers at '{address}': {error}",
            where="--scheduler",
            fix="Start one with `dask scheduler`, and give the address that it prints, such as tcp://host:8786.",
        ) from error
    with client:
        _require_workers(client, address)
        yield client


def _require_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise OptionError(
            "no-workers",
            f"the scheduler at '{address}' has no worker",
            where="--scheduler",
            fix=f"Start some with `dask worker {address}`, where quantool is installed.",
        ) from error
    # A worker that dies in between answers with another error, and its shards run elsewhere.
    answers = client.run(versions, on_error="return")
    for worker, answer in answers.items():
        if isinstance(answer, ImportError):
            raise OptionError(
                "worker-without-quantool",
                f"the worker at '{worker}' cannot import what it needs: {answer}",
                where="--scheduler",
                fix="Install quantool in the environment of every worker, in the version that runs here.",
            ) from answer
