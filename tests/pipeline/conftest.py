"""A folder with a small model and its calibration data, to run commands in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.bed import Shell, cnn, images, save


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, tmp_path)


@pytest.fixture
def ready(shell: Shell) -> Shell:
    """A shell in a folder with ``m.onnx`` and 24 feeds in ``d.npz``, which is not found by itself."""
    save(cnn(), Path("m.onnx"))
    np.savez("d.npz", image=images(24))
    return shell
