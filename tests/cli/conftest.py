"""The command line on a pipeline that answers at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import quantool
from cli.fake_pipeline import FakePipeline


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePipeline:
    """The fake in place of quantool.pipeline, and an empty folder to work in."""
    fake = FakePipeline()
    monkeypatch.setitem(sys.modules, "quantool.pipeline", fake)
    monkeypatch.setattr(quantool, "pipeline", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake
