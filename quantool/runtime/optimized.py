"""The model as ONNX Runtime's optimizer leaves it: what really runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from quantool.runtime.session import Loadable, Session

T = TypeVar("T")


def load_and_inspect(source: Loadable, read: Callable[[Path], T]) -> tuple[Session, T]:
    """Load the model once, and read the optimized model that ONNX Runtime writes while it loads.

    Loading is what costs (worse than linear on graphs full of Q and DQ), so the session is returned as well.
    read: reads the file, which is gone afterwards. What it says holds for this kind of machine.

    Raises:
        ModelError: the model does not load.
    """
    with tempfile.TemporaryDirectory(prefix="quantool-") as folder:
        path = Path(folder) / "optimized.onnx"
        session = Session(replace(source, optimized_to=path))
        return session, read(path)
