"""Progress is for terminals; elsewhere nothing is written."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from quantool.runtime.progress import watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_count_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert list(watched(range(3), "calibrating", progress=True, total=3)) == [0, 1, 2]
    assert "calibrating" in terminal.getvalue()
    assert "samples/s" in terminal.getvalue()


def test_a_run_that_goes_on_counts_from_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert list(watched(range(3), "calibrating", progress=True, total=8, done=5, unit="shards")) == [0, 1, 2]
    assert "5/8" in terminal.getvalue()
    assert "shards/s" in terminal.getvalue()


@pytest.mark.parametrize(("stream", "progress"), [(io.StringIO(), True), (Terminal(), False)])
def test_nothing_is_written_elsewhere(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, progress: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(watched(range(3), "calibrating", progress=progress)) == [0, 1, 2]
    assert stream.getvalue() == ""


def test_importing_the_package_loads_neither_runtime_nor_tqdm() -> None:
    code = "import sys, quantool.runtime as r; print([m for m in ('onnxruntime', 'tqdm', 'onnx') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_every_exported_name_loads_and_others_do_not() -> None:
    import quantool.runtime

    assert all(callable(getattr(quantool.runtime, name)) for name in quantool.runtime.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = quantool.runtime.nothing
