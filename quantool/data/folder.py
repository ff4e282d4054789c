"""Folders with one feed a file, and ONNX test data sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from quantool.data.archive import layouts, row_readers
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, single_input
from quantool.errors import DataError
from quantool.schema import AnyArray

ARRAY_SUFFIXES = (".npy", ".npz")
_NUMBER = re.compile(r"(\d+)")


def in_order(paths: list[Path]) -> list[Path]:
    """Sorted by name, numbers inside names by value, so that input_10 follows input_9."""

    def key(path: Path) -> list[tuple[int, int, str]]:
        parts = _NUMBER.split(path.name)
        return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]

    return sorted(paths, key=key)


def visible(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """A folder's files with one of the suffixes, in order; hidden ones are left out."""
    return in_order(
        [
            path
            for path in folder.iterdir()
            if path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file()
        ]
    )


def read_array_files(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Each .npz file is one feed, exactly as the model takes it; so is each .npy file of a one-input model."""
    del options  # a file is a feed whatever its size
    files = visible(folder, ARRAY_SUFFIXES)

    def read() -> Iterator[RawFeed]:
        yield from ((path.name, partial(_whole, path, inputs)) for path in files)

    return RawFeeds(description=f"{folder} ({len(files)} {'file' if len(files) == 1 else 'files'})", read=read)


def _whole(path: Path, inputs: tuple[InputSpec, ...]) -> dict[str, AnyArray]:
    with row_readers(path, layouts(path)) as readers:
        arrays = {name: reader.all() for name, reader in readers.items()}
    if path.suffix.lower() != ".npy":
        return arrays
    return {single_input(inputs, where=str(path), kind="a .npy file").name: arrays[""]}


def data_sets_in(folder: Path) -> list[Path]:
    """The ONNX test data sets in a folder that hold inputs, or the folder itself where it is one; in order."""
    sets = in_order([path for path in folder.glob("test_data_set_*") if any(path.glob("input_*.pb"))])
    return sets or ([folder] if any(folder.glob("input_*.pb")) else [])


def read_test_data_sets(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Each set is one feed: ``input_K.pb`` is the model's input K.

    Raises:
        DataError: a set has more inputs than the model, or a file that is no tensor.
    """
    sets = data_sets_in(folder)

    def read() -> Iterator[RawFeed]:
        yield from ((path.name, partial(_test_data_set, path, inputs, options)) for path in sets)

    return RawFeeds(
        description=f"{folder} ({len(sets)} ONNX test data {'set' if len(sets) == 1 else 'sets'})", read=read
    )


def _test_data_set(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> dict[str, AnyArray]:
    feed = {}
    for path in in_order(list(folder.glob("input_*.pb"))):
        number = path.stem.removeprefix("input_")
        if not number.isdecimal() or int(number) >= len(inputs):
            raise DataError(
                "unknown-input",
                f"{path.name} belongs to no input: the model takes {len(inputs)}",
                where=str(path),
                fix="Use the data sets of this very model.",
            )
        feed[inputs[int(number)].name] = _decoded(path, options)
    return feed


def _decoded(path: Path, options: DataOptions) -> AnyArray:
    assert options.decode_tensor is not None, "the caller hands the decoder of tensors in"
    try:
        return options.decode_tensor(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            "data-unreadable",
            f"the file is no readable tensor: {error}",
            where=str(path),
            fix="Write it with onnx.numpy_helper.from_array(array).SerializeToString().",
        ) from error
