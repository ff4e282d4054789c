"""JSON Lines: an object a line, nested lists of numbers by input name, or a list of token ids alone."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from quantool.data.decoder_inputs import IDS, takes_tokens
from quantool.data.spec import DataOptions, InputSpec, RawFeeds
from quantool.errors import DataError
from quantool.schema import AnyArray


def read_json_lines(path: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Each line that is not blank is one feed, exactly as the model takes it."""
    del options  # a line is a feed whatever its size
    floats = {spec.name for spec in inputs if "float" in spec.dtype}

    lists = takes_tokens(inputs)

    def read() -> Iterator[tuple[str, Callable[[], Mapping[str, object]]]]:
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                    if line.strip():
                        yield (
                            f"line {number}",
                            partial(_parsed, line, floats, lists=lists, where=f"{path}, line {number}"),
                        )
        except OSError as error:
            raise DataError(
                "data-unreadable",
                f"the file cannot be read: {error.strerror}",
                where=str(path),
                fix="Check its rights.",
            ) from error

    def names() -> frozenset[str]:
        return frozenset(next((load() for _, load in read()), ()))

    return RawFeeds(description=f"{path} (JSON Lines)", read=read, names=names)


def _parsed(line: bytes, floats: set[str], *, lists: bool, where: str) -> Mapping[str, object]:
    """The arrays of a line. lists: a list alone holds token ids."""
    try:
        kinds = dict[str, object] | list[object] if lists else dict[str, object]
        entry = msgspec.json.decode(line, type=kinds)
        named = {IDS: entry} if isinstance(entry, list) else entry
        return {name: _array(value, is_float=name in floats) for name, value in named.items()}
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            "data-unreadable",
            f"the line is no JSON object of arrays: {error}",
            where=where,
            fix='Write lines such as {"x": [[0.5, 1.0]]}, all rows of an array of one length.',
        ) from error


def _array(value: object, *, is_float: bool) -> AnyArray:
    """Numbers as an array. JSON writes 1 for 1.0, and a list without numbers tells no type: the input decides."""
    array = np.asarray(value, np.float64) if is_float else np.asarray(value)
    return array if array.size or is_float else array.astype(np.int64)
