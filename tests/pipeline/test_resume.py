"""A calibration that was killed goes on from its checkpoint, counts no sample twice, and gives the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell, cnn, images
from pipeline.test_ranges import Counter
from quantool.errors import DataError, OptionError
from quantool.pipeline.calibration import checkpoint

#: the command line, with a checkpoint after every sample
PROGRAM = (
    "import sys; from quantool.pipeline.calibration import checkpoint; checkpoint.INTERVAL_SECONDS = 0.0; "
    "checkpoint.LARGEST_SHARE = 1e9; from quantool.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
#: feeds that stop after ten, as if they took for ever, while the file `slow` exists
FEEDS = """
import pathlib, time
import numpy as np

def feeds():
    for number, image in enumerate(np.load("d.npz")["image"]):
        while number == 10 and pathlib.Path("slow").exists():
            time.sleep(0.01)
        yield {"image": image[None]}
"""
HIDDEN = Path(".s.qcal.checkpoint")
LINE = "calibrate m.onnx --data slow_feeds:feeds -o s.qcal"


@pytest.fixture(autouse=True)
def _every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every sample, in this process too."""
    monkeypatch.setattr(checkpoint, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 1e9)


@pytest.fixture
def counter(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts runs of the model in this process."""
    return Counter(monkeypatch)


def interrupted(number: signal.Signals, *more: str) -> subprocess.CompletedProcess[str]:
    """A calibration that a signal ends while it waits for its eleventh feed."""
    Path("slow_feeds.py").write_text(FEEDS)
    Path("slow").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *LINE.split(), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not HIDDEN.exists() or checkpointed() < 10:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.2)  # the file is there a moment before the process knows that it wrote it
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
        Path("slow").unlink()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def checkpointed() -> int:
    """How many samples the checkpoint counts."""
    _, _, content = HIDDEN.read_bytes().partition(b"\n")
    return quantool.Stats.from_bytes(content).samples


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_a_signal_ended_goes_on_and_gives_the_same_bytes(
    ready: Shell, counter: Counter, number: signal.Signals
) -> None:
    ended = interrupted(number)
    assert ended.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "--resume goes on after the 10 samples" in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert not Path("s.qcal").exists()
    ran = ready(LINE + " --resume")
    assert ran.code == 0
    assert "24 samples, 10 of them before," in ran.out
    assert counter.runs == 14
    assert ready("calibrate m.onnx --data slow_feeds:feeds -o one.qcal").code == 0
    assert Path("s.qcal").read_bytes() == Path("one.qcal").read_bytes()
    assert not HIDDEN.exists()


def failing(count: int) -> Iterator[dict[str, object]]:
    """So many good feeds, and then none that the model takes."""
    yield from bed.feeds(24)[:count]
    yield {"image": "no image"}


def broken(ready: Shell, *, after: int = 9, **options: object) -> None:
    """A calibration that fails and leaves a checkpoint."""
    with pytest.raises(DataError) as caught:
        quantool.calibrate("m.onnx", data=failing(after), output="s.qcal", **options)
    assert "--resume goes on after" in caught.value.fix


@pytest.mark.parametrize(
    "options",
    [{}, {"collect": ["gram", "full"]}, {"calibrator": "moving-average"}, {"calibrator": "minmax"}, {"shard": "2/3"}],
    ids=str,
)
def test_a_run_that_failed_goes_on_once_its_data_is_repaired(
    ready: Shell, counter: Counter, options: dict[str, object]
) -> None:
    broken(ready, after=9 if "shard" not in options else 22, **options)
    done = checkpointed()
    assert done >= 7
    counter.runs = 0
    resumed = quantool.calibrate("m.onnx", data="d.npz", output="s.qcal", resume=True, **options)
    assert counter.runs == resumed.samples - done
    whole = quantool.calibrate("m.onnx", data="d.npz", output="one.qcal", **options)
    assert resumed.to_bytes() == whole.to_bytes() == Path("s.qcal").read_bytes() == Path("one.qcal").read_bytes()
    assert ready.files() == ["d.npz", "m.onnx", "one.qcal", "s.qcal"]


def test_a_run_may_be_interrupted_again_and_again(ready: Shell, counter: Counter) -> None:
    for after in (5, 9, 17):
        broken(ready, after=after, resume=after > 5)
        assert checkpointed() == after
    assert counter.runs == 17
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --resume").code == 0
    assert counter.runs == 24
    assert Path("s.qcal").read_bytes() == quantool.calibrate("m.onnx", data="d.npz").to_bytes()


def test_another_run_does_not_go_on_from_a_checkpoint(ready: Shell) -> None:
    broken(ready)
    before = HIDDEN.read_bytes()
    for more, words in {
        "--calibrator minmax": "--calibrator is 'minmax' now and was not given",
        "--shard 1/2": "--shard is '1/2' now",
        "--collect full": "--collect is",
        "--samples 20": "--samples is '20' now",
    }.items():
        ran = ready(f"calibrate m.onnx --data d.npz -o s.qcal --resume {more}")
        assert ran.code == 2
        assert words in ran.err
    bed.save(bed.model(bed.CNN, {i.name: onnx_array(i) * 2 for i in cnn().graph.initializer}), Path("m.onnx"))
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --resume --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "resume-differs")
    assert "the model is" in ran.err
    assert HIDDEN.read_bytes() == before
    # What changes no byte may change: where memory or time was short, that is why the run ended.
    bed.save(cnn(), Path("m.onnx"))
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --resume --threads 1").code == 0


def onnx_array(initializer: object) -> np.ndarray:
    """An initializer's values."""
    import onnx

    return onnx.numpy_helper.to_array(initializer)  # type: ignore[arg-type]


def test_other_data_does_not_go_on_from_a_checkpoint(ready: Shell, counter: Counter) -> None:
    broken(ready)
    counter.runs = 0
    np.savez("other.npz", image=images(24, seed=8))
    np.savez("short.npz", image=images(24)[:5])
    for name in ("other", "short"):
        ran = ready(f"calibrate m.onnx --data {name}.npz -o s.qcal --resume --json")
        assert (ran.code, ran.document["errors"][0]["code"]) == (2, "resume-other-data")
    assert (counter.runs, checkpointed()) == (0, 9)


def test_without_a_checkpoint_a_run_starts_anew_and_says_so(ready: Shell) -> None:
    found = ready("calibrate m.onnx --data d.npz -o s.qcal --resume --json").document
    assert (found["exit_code"], found["data"]["samples"]) == (0, 24)
    assert [note["code"] for note in found["warnings"]] == ["nothing-to-resume"]
    assert not HIDDEN.exists()


def test_without_resume_a_checkpoint_is_passed_over_and_replaced(ready: Shell, counter: Counter) -> None:
    broken(ready)
    counter.runs = 0
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    assert (counter.runs, HIDDEN.exists()) == (24, False)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "resume-unreadable"),
        (b"[]\n", "resume-unreadable"),
        (b'{"format": "other"}\n', "resume-unreadable"),
        (None, "stats-damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused(ready: Shell, content: bytes | None, code: str) -> None:
    broken(ready)
    HIDDEN.write_bytes(HIDDEN.read_bytes()[:-40] if content is None else content)
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --resume --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, code)
    assert ".s.qcal.checkpoint" in ran.err


def test_a_checkpoint_costs_a_small_share_of_the_time(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 0.02)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    kept = checkpoint.Checkpoint(Path("s.qcal"), {})
    written: list[float] = []

    def counted() -> quantool.Stats:
        written.append(clock[0])
        return quantool.Stats()

    def slow(*_: object, **__: object) -> None:
        clock[0] += 2.0

    monkeypatch.setattr(checkpoint, "publish", slow)
    for _ in kept.watch([{}] * 400, counted):
        clock[0] += 1.0
    assert np.diff(written).min() >= 100
    assert len(written) > 3


def test_resume_needs_an_output(ready: Shell) -> None:
    with pytest.raises(OptionError, match="--resume needs the output"):
        quantool.calibrate("m.onnx", data="d.npz", resume=True)


def test_shards_that_workers_finished_are_kept(ready: Shell) -> None:
    # One worker takes the shards in their order, and the last one holds a sample that fails.
    array = images(24)
    array[7] = 1e38
    np.savez("d.npz", image=array)
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --workers 2")
    assert ran.code == 2
    assert "--resume goes on after the" in ran.err
    done = checkpointed()
    assert 3 <= done <= 21
    assert done % 3 == 0
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --resume")
    assert ran.code == 2
    assert "the way to count is 'in one process' now and was 'with --workers or --scheduler'" in ran.err
    # Other workers may go on, as many shards as were cut before.
    np.savez("d.npz", image=images(24))
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --resume --workers 1")
    assert ran.code == 0
    assert f"24 samples, {done} of them before," in ran.out
    assert Path("s.qcal").read_bytes() == quantool.calibrate("m.onnx", data="d.npz").to_bytes()
    assert not HIDDEN.exists()


def test_the_first_line_of_a_checkpoint_says_whose_it_is(ready: Shell) -> None:
    broken(ready)
    header = json.loads(HIDDEN.read_bytes().split(b"\n")[0])
    assert (
        header["origin"]["the model"] == quantool.Stats.from_bytes(HIDDEN.read_bytes().split(b"\n", 1)[1]).model_sha256
    )
    assert os.fspath(Path.cwd()) not in json.dumps(header)
