"""Strict reading of values that a person gave: no guessing, and advice for what is unknown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args

import msgspec
import numpy as np


class BadValueError(Exception):
    """A value that cannot be used; the caller knows where it came from."""

    def __init__(self, what: str, fix: str) -> None:
        self.what = what
        self.fix = fix
        super().__init__(what, fix)


def nearest(value: str, known: Iterable[str]) -> str:
    """The advice for an unknown name: what it might have been, and what there is."""
    names = list(known)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names)}."


def block_size_of(granularity: str) -> int | None:
    """N of ``block:N``, 0 for ``tensor`` and ``channel``, None where the text is none of these."""
    if granularity in ("tensor", "channel"):
        return 0
    found = re.fullmatch(r"block:0*([1-9][0-9]{0,8})", granularity)
    return None if found is None else int(found[1])


def parse_memory(text: str) -> int | None:
    """Bytes of a size such as ``512M`` or ``2G`` (powers of 1024); None where the text is no such size."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGT]?)B?", text.strip().upper())
    return None if found is None else int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


@dataclass(frozen=True, slots=True)
class TargetSize:
    """A size in bytes, or else in bits per weight."""

    size: int | None
    bits: float


def parse_target_size(text: str) -> TargetSize | None:
    """A size with a unit, ``500M`` or ``4.5G`` (powers of 1024), or bits per weight, ``4.5bpw``; None for any other."""
    bits = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)bpw", text.strip().lower())
    if bits is not None:
        return TargetSize(None, float(bits[1])) if float(bits[1]) > 0 else None
    size = None if text.strip()[-1:].isdigit() else parse_memory(text)
    return None if not size else TargetSize(size, 0.0)


def parse_shard(text: str) -> tuple[int, int] | None:
    """I and N of ``I/N``; None where the text is no such thing."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    return None if found is None else (int(found[1]), int(found[2]))


def strict(name: str, value: object, kind: Any) -> Any:
    """A value as the type `kind`: "3" is no number and 1 is no flag.

    Raises:
        BadValueError: it is not of that type, or no member of the StrEnum.
    """
    if isinstance(value, np.generic):
        value = value.item()
    for choices in _enums(kind):
        names = [member.value for member in choices]
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str) and text not in names:
                raise BadValueError(f"Unknown {name.replace('_', ' ')} '{text}'", nearest(text, names))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "'")
        raise BadValueError(f"{name} is {value!r}: {text}", "Give a value of the type expected.") from None


def _enums(kind: Any) -> Iterator[type[StrEnum]]:
    """The choices in a type: itself, or what it is a tuple or a union of."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield kind
    for part in get_args(kind):
        yield from _enums(part)
