"""Real models run where they are asked for: by `-m real` or by a path into this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.real.compare import Comparison

HERE = Path(__file__).resolve().parent
# The bed is a package of the repository, found from its root however pytest was started.
sys.path.insert(0, str(HERE.parents[1]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the real models out of a plain run: they need downloads, a speech synthesizer and minutes."""
    if collection_path.name != "test_real_models.py":
        return None
    expression = str(config.option.markexpr)
    by_mark = "real" in expression and "not real" not in expression
    by_path = any(HERE.name in Path(argument.split("::")[0]).parts for argument in config.args)
    return None if by_mark or by_path else True


@pytest.fixture(scope="session")
def comparisons() -> Iterator[Callable[[str], Comparison]]:
    """Compare each model once; the rows measured become a table in the cache folder at the end."""
    import quantool
    from tests.real import compare, wheels

    rows: dict[str, Comparison] = {}

    def measured(name: str) -> Comparison:
        if name not in rows:
            rows[name] = compare.compare(name, quantool.quantize)
        return rows[name]

    yield measured
    if rows:
        compare.write(list(rows.values()), wheels.cache_folder() / "table.md")
