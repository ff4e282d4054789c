"""Pages in a real browser, where they are asked for: by `-m browser`, after .ci/browser-setup.sh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Tab, browser

AXE = sorted((Path(__file__).parents[2] / ".cache").glob("axe-core-*/axe.min.js"))


@pytest.fixture(scope="session")
def tab() -> Iterator[Tab]:
    """One page of a headless Chromium."""
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    assert AXE, "axe-core is not there: run .ci/browser-setup.sh"
    return AXE[-1].read_text(encoding="utf-8")
