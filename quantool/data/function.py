"""Feeds from a Python callable, named as package.module:callable."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from quantool.data.spec import RawFeed, RawFeeds, in_memory
from quantool.errors import DataError, QuantoolError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def names_callable(source: str) -> bool:
    """Whether a source is written as package.module:callable."""
    return _NAME.fullmatch(source) is not None


def read_callable(source: str) -> RawFeeds:
    """What ``callable()`` yields; it is called anew for each pass. Modules in the working folder are found too.

    Raises:
        DataError: it cannot be imported, is no callable, or fails.
    """
    target: Callable[[], Iterable[object]] = imported(source, _failed)

    def read() -> Iterator[RawFeed]:
        try:
            yield from map(in_memory, target())
        except QuantoolError:
            raise
        except Exception as error:  # the user's own code may fail in any way
            raise _failed(source, f"it failed: {type(error).__name__}: {error}") from error

    return RawFeeds(description=source, read=read)


def imported(source: str, failed: Callable[[str, str], QuantoolError]) -> Callable[..., Any]:
    """The callable of a name; `failed` makes the error of a name and what is wrong. The working folder is searched too.

    Raises:
        QuantoolError: what `failed` makes.
    """
    module_name, _, attribute = source.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the user's own code
        raise failed(source, f"it cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise failed(source, f"it is a {type(found).__name__}, not a callable")
    return found


def _failed(source: str, what: str) -> DataError:
    return DataError(
        "data-callable",
        what,
        where=source,
        fix="Name a function without arguments that yields dicts from input name to array.",
    )
