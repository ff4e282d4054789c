"""Channels and Gram matrices as rows of the header and numbers of a member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from calibrators import Channels, Gram
from calibrators.fixed_point import GridSums
from quantool.qcal.rows import ChannelsRow, GramRow, Header

_EXTREMUM: Final = np.dtype("<f4")
_SUM: Final = np.dtype("<i8")
# Exponents of float32, and sizes beyond those of any layer.
_EXPONENTS: Final = range(-160, 132)
_LARGEST_SIZE: Final = 1 << 24


def channels_row(header: Header, name: str, state: Channels) -> ChannelsRow:
    """The header's row."""
    return ChannelsRow(
        name=name,
        address=header.address("channels", name),
        axis=state.axis,
        size=state.lows.size,
        rows=state.rows,
        exponents=tuple(e for e, _ in state.sums),
    )


def gram_row(header: Header, key: str, state: Gram) -> GramRow:
    """The header's row."""
    shapes = [part.shape for _, part in state.sums] or [(0, 0, 0)]
    return GramRow(
        key=key,
        address=header.address("gram", key),
        groups=shapes[0][0],
        size=shapes[0][1],
        rows=state.rows,
        exponents=tuple(e for e, _ in state.sums),
    )


def channels_bytes(state: Channels) -> bytes:
    """Lows, highs, and the sums of each grid."""
    extrema = [part.astype(_EXTREMUM).tobytes() for part in (state.lows, state.highs)]
    return b"".join(extrema + [part.astype(_SUM).tobytes() for _, part in state.sums])


def gram_bytes(state: Gram) -> Iterator[bytes]:
    """The upper triangle of each group, grid by grid, a row at a time."""
    for _, part in state.sums:
        for group in part:
            for i, row in enumerate(group):
                yield row[i:].astype(_SUM).tobytes()


def channels_size(rows: Sequence[ChannelsRow]) -> int:
    """The bytes of the member."""
    return sum(_checked(row.size) * (8 + 8 * len(row.exponents)) for row in rows)


def grams_size(rows: Sequence[GramRow]) -> int:
    """The bytes of the member."""
    return sum(_triangle(row) * 8 * len(row.exponents) for row in rows)


def _triangle(row: GramRow) -> int:
    return _checked(row.groups) * (_checked(row.size) * (row.size + 1) // 2)


def _checked(size: int) -> int:
    if not 0 <= size <= _LARGEST_SIZE:
        raise ValueError(f"a statistic of size {size} belongs to no layer")
    return size


def channels(header: Header, content: bytes) -> dict[str, Channels]:
    """The statistics of all channels."""
    found: dict[str, Channels] = {}
    at = 0
    for row in header.channels:
        _check(header.address("channels", row.name), row, row.name, row.name in found)
        lows, highs = (
            np.frombuffer(content, _EXTREMUM, row.size, at + 4 * row.size * i).astype(np.float32) for i in range(2)
        )
        at += 8 * row.size
        parts = {}
        for exponent in row.exponents:
            parts[exponent] = np.frombuffer(content, _SUM, row.size, at).astype(np.int64)
            at += 8 * row.size
        found[row.name] = Channels(axis=row.axis, lows=lows, highs=highs, rows=row.rows, sums=GridSums(parts))
    if at != len(content):
        raise ValueError("it holds more channels than its header tells of")
    return found


def grams(header: Header, content: bytes) -> dict[str, Gram]:
    """The Gram matrices, each half restored from the other."""
    found: dict[str, Gram] = {}
    at = 0
    for row in header.grams:
        _check(header.address("gram", row.key), row, row.key, row.key in found)
        upper = np.triu_indices(row.size)
        parts = {}
        for exponent in row.exponents:
            part = np.zeros((row.groups, row.size, row.size), np.int64)
            for group in part:
                group[upper] = np.frombuffer(content, _SUM, upper[0].size, at)
                group.T[upper] = group[upper]
                at += 8 * upper[0].size
            parts[exponent] = part
        found[row.key] = Gram(rows=row.rows, sums=GridSums(parts))
    if at != len(content):
        raise ValueError("it holds more Gram matrices than its header tells of")
    return found


def _check(address: str, row: ChannelsRow | GramRow, name: str, double: bool) -> None:
    if row.address != address:
        raise ValueError(f"the statistic of {name!r} belongs to another graph or data")
    exponents = row.exponents
    if double or row.rows < 0 or list(exponents) != sorted(set(exponents)) or not set(exponents) <= set(_EXPONENTS):
        raise ValueError(f"the statistic of {name!r} contradicts itself")
