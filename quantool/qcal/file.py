"""The bytes of a ``.qcal`` file: a zip archive whose members hold numbers, written and read one by one."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from typing import BinaryIO, Final

import msgspec
import numpy as np

from quantool.errors import DataError, QuantoolError
from quantool.qcal import sums, tensors
from quantool.qcal.contents import Contents
from quantool.qcal.rows import FORMAT, STATISTIC_VERSIONS, VERSION, Header, VersionOnly, Versions

_HEADER, _FEEDS, _KEYS, _COUNTS = "header.json", "feeds.bin", "keys.bin", "counts.bin"
_CHANNELS, _GRAMS = "channels.bin", "grams.bin"
_FEED_TYPE = np.dtype("<u8")
# The earliest time that a zip archive can state: files must not depend on the clock.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_LARGEST_HEADER_BYTES: Final = 1 << 28


def write(file: BinaryIO, contents: Contents) -> None:
    """Write the file; equal contents give equal bytes. Memory: the header, and one statistic."""
    feeds = np.array(contents.feeds, _FEED_TYPE).tobytes()
    header = Header(
        model_sha256=contents.model_sha256,
        graph_sha256=contents.graph_sha256,
        data_sha256=hashlib.sha256(feeds).hexdigest(),
        samples=contents.samples,
        sources=contents.sources,
        full=contents.full,
    )
    header = msgspec.structs.replace(
        header,
        tensors=tuple(tensors.row(header, name, contents.tensors[name]) for name in sorted(contents.tensors)),
        channels=tuple(sums.channels_row(header, name, contents.channels[name]) for name in sorted(contents.channels)),
        grams=tuple(sums.gram_row(header, key, contents.grams[key]) for key in sorted(contents.grams)),
    )
    histograms = [tensors.buckets(contents.tensors[row.name]) for row in header.tensors]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, _HEADER, [msgspec.json.encode(header)])
        _add(archive, _FEEDS, [feeds], packed=False)
        _add(archive, _KEYS, (keys for keys, _ in histograms))
        _add(archive, _COUNTS, (counts for _, counts in histograms))
        _add(archive, _CHANNELS, (sums.channels_bytes(contents.channels[row.name]) for row in header.channels))
        grams = (part for row in header.grams for part in sums.gram_bytes(contents.grams[row.key]))
        _add(archive, _GRAMS, grams, packed=False)


def _add(archive: zipfile.ZipFile, name: str, parts: Iterable[bytes], *, packed: bool = True) -> None:
    """Add a member; sums and hashes hardly shrink, so that packing them would only take time."""
    info = zipfile.ZipInfo(name, _EPOCH)
    # The default differs between systems.
    info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with archive.open(info, "w", force_zip64=True) as member:
        for part in parts:
            member.write(part)


def decode(content: bytes, *, where: str) -> Contents:
    """Read a file's bytes back.

    Raises:
        DataError: damaged, or not such a file.
        QuantoolError: another version of the format, or of a statistic.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            header = _header(_read(archive, _HEADER, _LARGEST_HEADER_BYTES), where)
            return _contents(archive, header)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError, ValueError, NotImplementedError) as error:
        # msgspec's errors are ValueErrors; an encrypted member is a RuntimeError.
        raise DataError(
            "stats-damaged",
            f"this is no undamaged .qcal file: {error}",
            where=where,
            fix="Name a file that `quantool calibrate` or `quantool merge` wrote, or calibrate again.",
        ) from error


def _contents(archive: zipfile.ZipFile, header: Header) -> Contents:
    feeds = _read(archive, _FEEDS, header.samples * _FEED_TYPE.itemsize)
    if hashlib.sha256(feeds).hexdigest() != header.data_sha256:
        raise ValueError("its feeds are not those that the header tells of")
    total = sum(row.buckets for row in header.tensors)
    keys, counts = _read(archive, _KEYS, total * 2), _read(archive, _COUNTS, total * 8)
    channels = _read(archive, _CHANNELS, sums.channels_size(header.channels))
    grams = _read(archive, _GRAMS, sums.grams_size(header.grams))
    return Contents(
        tensors=tensors.states(header, keys, counts),
        channels=sums.channels(header, channels),
        grams=sums.grams(header, grams),
        model_sha256=header.model_sha256,
        graph_sha256=header.graph_sha256,
        samples=header.samples,
        sources=header.sources,
        feeds=tuple(np.frombuffer(feeds, _FEED_TYPE).tolist()),
        full=header.full,
    )


def _read(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > most_bytes:
        raise ValueError(f"{name} holds {size} bytes, more than the {most_bytes} that belong there")
    return archive.read(name)


def _header(content: bytes, where: str) -> Header:
    found = msgspec.json.decode(content, type=VersionOnly)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format!r}, not {FORMAT!r}")
    if found.version != VERSION:
        raise _other_version(f"the file has version {found.version}, and this quantool reads version {VERSION}", where)
    statistics = msgspec.json.decode(content, type=Versions).statistics
    for kind, version in statistics.items():
        if STATISTIC_VERSIONS.get(kind) != version:
            known = STATISTIC_VERSIONS.get(kind, "none")
            raise _other_version(
                f"its statistic '{kind}' has version {version}, and this quantool reads version {known}", where
            )
    return msgspec.json.decode(content, type=Header)


def _other_version(what: str, where: str) -> QuantoolError:
    return QuantoolError("stats-version", what, where=where, fix="Calibrate again with this version of quantool.")
