"""--scheduler: a real Dask scheduler and real workers, one of which is killed while it counts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pipeline.bed as bed
from pipeline.bed import Shell
from quantool.pipeline.calibration import cluster, shards

#: feeds that take their time, and note which worker made them
FEEDS = """
import os, pathlib, time
import numpy as np

def feeds():
    here = pathlib.Path(__file__).parent
    (here / f"pid-{os.getpid()}").touch()
    for image in np.load(here / "d.npz")["image"]:
        time.sleep(0.05)
        yield {"image": image[None]}
"""


class Dask:
    """A scheduler on a free port of this machine, and two workers in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", "scheduler.json")
        self._wait((folder / "scheduler.json").exists)
        self.address = json.loads((folder / "scheduler.json").read_text())["address"]
        # No nanny: nobody starts a worker again that was killed.
        self.workers = [self._start("worker", self.address, "--nthreads", "1", "--no-nanny") for _ in range(2)]

    def _start(self, kind: str, *words: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self._folder / f"log-{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words, "--no-dashboard"],
                cwd=self._folder, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not there():
            assert time.monotonic() < deadline, [log.read_text() for log in self._folder.glob("log-*")]
            time.sleep(0.02)

    def kill_when_busy(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker as soon as it makes feeds."""
        self._wait((self._folder / f"pid-{worker.pid}").exists)
        worker.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def dask(folder: Path) -> Iterator[Dask]:
    """A cluster that ends with the test."""
    folder.mkdir()
    found = Dask(folder)
    try:
        yield found
    finally:
        found.stop()


def test_a_cluster_gives_the_bytes_of_one_process_though_a_worker_is_killed(
    ready: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dask(tmp_path / "cluster") as running:
        # The data as files, which both sides read under one path.
        assert ready(f"calibrate m.onnx --data d.npz -o far.qcal --scheduler {running.address} --json").code == 0
        assert ready("calibrate m.onnx --data d.npz -o one.qcal").code == 0
        assert Path("far.qcal").read_bytes() == Path("one.qcal").read_bytes()

        for folder in (tmp_path, tmp_path / "cluster"):
            (folder / "slow_images.py").write_text(FEEDS)
            (folder / "d.npz").write_bytes(Path("d.npz").read_bytes())
        monkeypatch.delitem(sys.modules, "slow_images", raising=False)
        killer = threading.Thread(target=running.kill_when_busy, args=(running.workers[0],))
        killer.start()
        line = "calibrate m.onnx --data slow_images:feeds"
        ran = ready(f"{line} -o far.qcal --force --scheduler {running.address}")
        killer.join()
        assert (ran.code, ran.err) == (0, "")
        assert running.workers[0].wait(timeout=20) == -signal.SIGKILL
        assert running.workers[1].poll() is None
        assert ready(f"{line} -o one.qcal --force").code == 0
        assert Path("far.qcal").read_bytes() == Path("one.qcal").read_bytes()

        # What fails on a worker is told as in one process, with what a worker must see.
        bed.save(bed.mlp(), Path("other.onnx"))
        ran = ready(f"calibrate other.onnx --data slow_images:feeds -o o.qcal --scheduler {running.address}")
        assert ran.code == 2
        assert "Traceback" not in ran.err


def test_a_scheduler_that_does_not_answer_is_named(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ran = ready(f"calibrate m.onnx --data d.npz -o s.qcal --scheduler {address}")
    assert ran.code == 2
    assert f"no Dask scheduler answers at '{address}'" in ran.err
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --scheduler nonsense://here --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "no-scheduler")


def test_without_the_package_the_extra_is_named(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --scheduler tcp://localhost:1")
    assert ran.code == 2
    assert "pip install 'quantool[distributed]'" in ran.err


def job(**changes: object) -> shards.Job:
    """A job that is refused before it does anything."""
    values: dict[str, object] = dict.fromkeys(shards.Job.__slots__)
    return shards.Job(**{**values, "versions": shards.versions(), **changes})  # type: ignore[arg-type]


def test_a_worker_with_other_versions_or_without_the_weights_refuses(tmp_path: Path) -> None:
    with pytest.raises(shards.QuantoolError, match=r"shard 2 of 3 has numpy .*, not 1\.0"):
        shards.run_shard(job(versions=shards.versions() | {"numpy": "1.0"}), (2, 3))
    with pytest.raises(shards.QuantoolError, match=r"does not see '.*gone', where the model's external data lies"):
        shards.run_shard(job(folder=tmp_path / "gone"), (1, 1))
