"""Private memory: what this process holds itself, and the most of it."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from quantool.runtime import private_bytes, resident, watched_memory

SIZE = 64 * 1024 * 1024


def test_what_is_touched_counts_and_what_is_mapped_does_not(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(SIZE))
    before = private_bytes()
    assert before is not None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert np.frombuffer(mapped, np.uint8)[::4096].sum() == 0
        after = private_bytes()
    assert after is not None
    assert after - before < SIZE / 4
    held = np.ones(SIZE, np.uint8)
    now = private_bytes()
    assert now is not None
    assert now - before > SIZE * 0.9
    del held


def test_the_peak_is_seen_though_it_is_gone_at_the_end() -> None:
    with watched_memory() as peak:
        before = peak.bytes
        held = np.ones(SIZE, np.uint8)
        peak.look()
        del held
    assert before is not None
    assert peak.bytes is not None
    assert peak.bytes - before > SIZE * 0.9


def test_a_system_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "STATUS", Path("/nowhere"))
    with watched_memory() as peak:
        pass
    assert (peak.bytes, private_bytes()) == (None, None)
