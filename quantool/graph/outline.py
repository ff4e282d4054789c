"""A large model file without the data of its weights, which stay where they are: in the file, as external data of it.

Parsed as a whole, a file of 1.9 GB would be held in memory several times. Only the wire format of protobuf is read
here (protobuf.dev/programming-guides/encoding): the large raw_data of the main graph's initializers is skipped, and
everything else is copied.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGE_BYTES: Final = 64 * 1024
"""Smaller tensors stay inside."""

# Numbers of fields in onnx.proto.
_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _KEY, _VALUE = 7, 5, 9, 13, 14, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_EXTERNAL: Final = 1  # TensorProto.EXTERNAL


class _Field(NamedTuple):
    """One field of a message. start, stop: of its content; whole: where its tag begins."""

    number: int
    wire: int
    whole: int
    start: int
    stop: int


def outline(path: Path) -> bytes:
    """The serialized model, whose large initializers refer to the file itself.

    Raises:
        ValueError: the file is not what protobuf writes.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return b"".join(_model(data, path.name))


def _model(data: mmap.mmap, name: str) -> Iterator[bytes]:
    for field in _fields(data, 0, len(data)):
        if (field.number, field.wire) == (_GRAPH, _BYTES):
            yield _message(_GRAPH, b"".join(_graph(data, field, name)))
        else:
            yield data[field.whole : field.stop]


def _graph(data: mmap.mmap, graph: _Field, name: str) -> Iterator[bytes]:
    for field in _fields(data, graph.start, graph.stop):
        if (field.number, field.wire) == (_INITIALIZER, _BYTES) and field.stop - field.start >= LARGE_BYTES:
            yield _message(_INITIALIZER, b"".join(_tensor(data, field, name)))
        else:
            yield data[field.whole : field.stop]


def _tensor(data: mmap.mmap, tensor: _Field, name: str) -> Iterator[bytes]:
    for field in _fields(data, tensor.start, tensor.stop):
        if (field.number, field.wire) != (_RAW_DATA, _BYTES) or field.stop - field.start < LARGE_BYTES:
            yield data[field.whole : field.stop]
            continue
        for key, value in (("location", name), ("offset", field.start), ("length", field.stop - field.start)):
            entry = _message(_KEY, key.encode()) + _message(_VALUE, str(value).encode())
            yield _message(_EXTERNAL_DATA, entry)
        yield _varint(_DATA_LOCATION << 3 | _VARINT) + _varint(_EXTERNAL)


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[_Field]:
    position = start
    while position < stop:
        whole = position
        tag, position = _read_varint(data, position, stop)
        number, wire = tag >> 3, tag & 7
        begin = position
        if wire == _VARINT:
            _, position = _read_varint(data, position, stop)
        elif wire == _BYTES:
            length, begin = _read_varint(data, position, stop)
            position = begin + length
        elif wire in (_FIXED64, _FIXED32):
            position += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {whole}")
        if position > stop:
            raise ValueError(f"the field at byte {whole} ends beyond its message")
        yield _Field(number, wire, whole, begin, position)


def _read_varint(data: mmap.mmap, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"the number before byte {position} does not end")


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
