"""How much worse a quantity may get: an amount in its own unit, or a share of what it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from quantool.errors import OptionError
from quantool.values import nearest

#: the word for a quantity that is told and not judged
OFF: Final = "off"
_FIX: Final = "Give an amount in its unit (0.5), a share of the baseline (10%), or off."


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """An amount from 0 up. relative: it is a fraction of the baseline."""

    amount: float
    relative: bool = False

    def allowed(self, baseline: float) -> float:
        """The amount in the quantity's unit. baseline: may be infinite, as the SQNR of equal outputs is."""
        if not self.relative:
            return self.amount
        return self.amount * abs(baseline) if math.isfinite(baseline) else 0.0


def parse_tolerance(text: str) -> Tolerance | None:
    """A tolerance from ``0.5``, ``10%`` or ``off`` (None). Raises ValueError for anything else."""
    text = text.strip()
    if text == OFF:
        return None
    relative = text.endswith("%")
    amount = float(text.removesuffix("%"))
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(text)
    return Tolerance(amount=amount / 100 if relative else amount, relative=relative)


def tolerances_of(given: Iterable[str], defaults: Mapping[str, str]) -> dict[str, Tolerance | None]:
    """The tolerance of every quantity: the defaults, and over them what was given as ``NAME=VALUE``; the last wins.

    Raises:
        OptionError: no such form, an unknown name, or a value that is none.
    """
    texts = dict(defaults)
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            what, fix = f"--tolerance is '{item}'", "Give NAME=VALUE, as sqnr=0.5 or speedup=10%."
            raise OptionError("bad-value", what, where="--tolerance", fix=fix)
        if name not in defaults:
            what, fix = f"Unknown quantity '{name}' in --tolerance", nearest(name, defaults)
            raise OptionError("bad-value", what, where="--tolerance", fix=fix)
        texts[name] = text
    return {name: _parsed(name, text) for name, text in texts.items()}


def _parsed(name: str, text: str) -> Tolerance | None:
    try:
        return parse_tolerance(text)
    except ValueError:
        what = f"--tolerance {name} is '{text}'"
        raise OptionError("bad-value", what, where="--tolerance", fix=_FIX) from None
