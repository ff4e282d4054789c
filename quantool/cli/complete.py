"""What a shell offers behind an option when Tab is pressed: found without loading anything heavy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from quantool.elements import ELEMENTS

Completion = Callable[[str], list[str]]

TARGETS: Final = Path(__file__).parents[1] / "targets"


def completion_of(name: str, metavar: str) -> Completion | None:
    """How the values of an option are found: by its name, or the words that its metavar lists; None offers files."""
    if name == "target":  # a target is a file, whose name is its own
        return _offering(lambda: (path.stem for path in TARGETS.glob("*.toml")))
    if name in ("weights", "activations"):
        return _offering(lambda: ELEMENTS)
    words = [word for word in metavar.split("|") if re.fullmatch(r"[a-z][a-z0-9-]*", word)]
    return _offering(lambda: words) if words and "|" in metavar else None


def _offering(words: Callable[[], Iterable[str]]) -> Completion:
    def offer(incomplete: str) -> list[str]:
        return sorted(word for word in words() if word.startswith(incomplete))

    return offer
