"""English prose that every Debian machine holds: the common licences, one for calibration, others for evaluation."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

LICENSES = Path("/usr/share/common-licenses")
CALIBRATION = ("GPL-3", "LGPL-2.1")
EVALUATION = ("Apache-2.0", "MPL-2.0", "GFDL-1.3")


@functools.cache
def sentences(documents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sentences of 4 to 28 words that stand in these documents, in order, each once."""
    found: dict[str, None] = {}
    for document in documents:
        prose = " ".join((LICENSES / document).read_text(encoding="utf-8").split())
        for sentence in re.split(r"(?<=[.;:])\s+", prose):
            if 4 <= len(sentence.split()) <= 28 and sentence.isascii():
                found.setdefault(sentence)
    return tuple(found)


@functools.cache
def words(documents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of these documents in order."""
    return tuple(word for sentence in sentences(documents) for word in sentence.split())


def phrase(rng: np.random.Generator, documents: tuple[str, ...], *, count: int) -> str:
    """Return `count` consecutive words from a random place."""
    pool = words(documents)
    start = int(rng.integers(len(pool) - count))
    return " ".join(pool[start : start + count])
