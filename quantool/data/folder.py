"""Folders with one feed a file, and ONNX test data sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from quantool.data.archive import layouts, row_readers
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, one_input
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
    """Each .npz file is one feed, exactly as the model takes it.

    So is each .npy file, where the model has one input or the folder is named after one.
    """
    del options  # a file is a feed whatever its size
    files = visible(folder, ARRAY_SUFFIXES)

    def read() -> Iterator[RawFeed]:
        yield from ((path.name, partial(_whole, path, inputs)) for path in files)

    def names() -> frozenset[str]:
        first = files[0]
        return frozenset([_input_of(first, inputs).name] if first.suffix.lower() == ".npy" else layouts(first))

    return RawFeeds(
        description=f"{folder} ({len(files)} {'file' if len(files) == 1 else 'files'})",
        read=read,
        names=names,
        length=len(files),
    )


def _input_of(path: Path, inputs: tuple[InputSpec, ...]) -> InputSpec:
    return one_input(inputs, named=path.parent.name, where=str(path), kind="a .npy file")


def _whole(path: Path, inputs: tuple[InputSpec, ...]) -> dict[str, AnyArray]:
    with row_readers(path, layouts(path)) as readers:
        arrays = {name: reader.all() for name, reader in readers.items()}
    if path.suffix.lower() != ".npy":
        return arrays
    return {_input_of(path, inputs).name: arrays[""]}


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
        description=f"{folder} ({len(sets)} ONNX test data {'set' if len(sets) == 1 else 'sets'})",
        read=read,
        names=lambda: frozenset(_inputs_of(sets[0], inputs).values()),
        length=len(sets),
    )


def _test_data_set(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> dict[str, AnyArray]:
    return {name: _decoded(path, options) for path, name in _inputs_of(folder, inputs).items()}


def _inputs_of(folder: Path, inputs: tuple[InputSpec, ...]) -> dict[Path, str]:
    """The files of a set, and the input that each belongs to."""
    names = {}
    for path in in_order(list(folder.glob("input_*.pb"))):
        number = path.stem.removeprefix("input_")
        if not number.isdecimal() or int(number) >= len(inputs):
            raise DataError(
                "unknown-input",
                f"{path.name} belongs to no input: the model takes {len(inputs)}",
                where=str(path),
                fix="Use the data sets of this very model.",
            )
        names[path] = inputs[int(number)].name
    return names


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
