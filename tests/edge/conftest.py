"""Of a test with many cases a fixed third always runs, the rest with ``pytest -m full``."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: tests with more cases than this are thinned out
MANY = 20


@pytest.hookimpl(tryfirst=True)  # before marks decide what runs
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.parent == HERE and item.path.name != "test_backend_suite.py"]
    cases = Counter(_function(item) for item in own)
    for item in own:
        if cases[_function(item)] > MANY and zlib.crc32(item.name.encode()) % 3:
            item.add_marker(pytest.mark.full)


def _function(item: pytest.Item) -> tuple[str, str]:
    return item.path.name, item.name.split("[")[0]
