"""--workers: processes on this machine that give the bytes of one, and may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import quantool
from pipeline.bed import Shell, images
from quantool.pipeline.calibration import gathering, spread, workers
from quantool.pipeline.calibration.workers import threads_each

#: feeds that note who made them; `once` lets the first worker that takes it die, `always` every one, `slow` waits
FEEDS = """
import multiprocessing, os, pathlib, signal, time
import numpy as np

def feeds():
    working = multiprocessing.parent_process() is not None
    if working:
        pathlib.Path(f"pid-{os.getpid()}").touch()
    for number, image in enumerate(np.load("d.npz")["image"]):
        while number == 4 and working and pathlib.Path("slow").exists():
            time.sleep(0.01)
        if number == 4 and working and may_die():
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"image": image[None]}

def may_die():
    try:
        os.unlink("once")
        return True
    except FileNotFoundError:
        return pathlib.Path("always").exists()
"""


@pytest.fixture
def deadly(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell with a module of feeds that may kill who reads them."""
    Path("deadly_feeds.py").write_text(FEEDS)
    monkeypatch.delitem(sys.modules, "deadly_feeds", raising=False)
    return ready


def pids() -> set[int]:
    """The workers that made feeds."""
    return {int(path.name.removeprefix("pid-")) for path in Path().glob("pid-*")}


def alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_workers_give_the_bytes_of_one_process(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = spread.spread
    monkeypatch.setattr(gathering, "spread", lambda *taken: given.append(len(taken[1])) or real(*taken))
    ran = ready("calibrate m.onnx --data d.npz -o two.qcal --collect gram --workers 2")
    assert ran.code == 0
    assert "calibrated on 24 samples in" in ran.out
    assert ran.err == ""
    assert ready("calibrate m.onnx --data d.npz -o one.qcal --collect gram").code == 0
    assert Path("two.qcal").read_bytes() == Path("one.qcal").read_bytes()
    assert given == [8]


def test_a_worker_that_dies_has_its_shards_counted_once_by_another(deadly: Shell) -> None:
    Path("once").touch()
    ran = deadly("calibrate m.onnx --data deadly_feeds:feeds -o two.qcal --workers 2 --shard 1/2")
    assert ran.code == 0
    assert not Path("once").exists()
    assert len(pids()) > 2
    assert deadly("calibrate m.onnx --data deadly_feeds:feeds -o one.qcal --shard 1/2").code == 0
    assert Path("two.qcal").read_bytes() == Path("one.qcal").read_bytes()


def test_workers_that_always_die_end_the_run(deadly: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "RESTARTS", 0)
    Path("always").touch()
    ran = deadly("calibrate m.onnx --data deadly_feeds:feeds -o two.qcal --workers 1")
    assert ran.code == 2
    assert "worker processes died 1 time, and 1 shard could not be counted" in ran.err
    assert "fewer workers" in ran.err
    assert not Path("two.qcal").exists()


def test_what_fails_in_a_worker_is_told_as_in_one_process(ready: Shell) -> None:
    array = images(24)
    array[13] = 1e38
    np.savez("d.npz", image=array)
    ran = ready("calibrate m.onnx --data d.npz -o two.qcal --workers 1")
    assert ran.code == 2
    assert "sample 13 makes NaN or infinity in tensor" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(deadly: Shell, number: signal.Signals) -> None:
    Path("slow").touch()
    line = "-m quantool calibrate m.onnx --data deadly_feeds:feeds -o two.qcal --workers 2"
    process = subprocess.Popen(
        [sys.executable, *line.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while len(pids()) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (-9 if number == signal.SIGKILL else 143, "")
    assert "Traceback" not in err
    while any(map(alive, pids())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not Path("two.qcal").exists()


def test_threads_are_divided() -> None:
    processors = len(os.sched_getaffinity(0))
    assert threads_each(1) == processors
    assert threads_each(processors * 3) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "--workers is 0"),
        ({"workers": 2, "scheduler": "tcp://localhost:1"}, "--workers does not go with --scheduler"),
        ({"workers": 2, "data": [{"image": np.zeros((1, 3, 8, 8), np.float32)}]}, "feeds in memory"),
        ({"scheduler": "tcp://localhost:1", "data": iter(())}, "feeds in memory"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_any_work(
    ready: Shell, options: dict[str, object], words: str
) -> None:
    with pytest.raises(quantool.OptionError, match=words):
        quantool.calibrate("m.onnx", **{"data": "d.npz", **options})
