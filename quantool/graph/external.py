"""External data: where the files of a model really are, and whether they hold what the model declares."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quantool.errors import ModelError
from quantool.graph.protos import nbytes, tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFiles:
    """The real files behind a model's external data.

    folder: a real folder that contains all of them; files: location as the model writes it -> real path;
    size_bytes: of all files together.
    """

    folder: Path
    files: Mapping[str, Path]
    size_bytes: int

    def beside(self, model: Path | None) -> int:
        """The bytes of the files without that of the model, which holds weights itself where it is large."""
        own = None if model is None else model.resolve()
        return self.size_bytes - (own.stat().st_size if own is not None and own in self.files.values() else 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tensor says of its external data; length 0 means up to the end."""

    location: str
    offset: int
    length: int


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is in another file."""
    return tensor.data_location == tensor.EXTERNAL


def entry(tensor: onnx.TensorProto) -> Entry:
    """Read the external data fields of a tensor.

    Raises:
        ModelError: offset or length are no numbers from 0 on.
    """
    fields = {item.key: item.value for item in tensor.external_data}
    try:
        offset, length = int(fields.get("offset") or 0), int(fields.get("length") or 0)
    except ValueError:
        offset, length = -1, -1
    if offset < 0 or length < 0:
        raise ModelError(
            "external-data-broken",
            f"offset {fields.get('offset')!r} or length {fields.get('length')!r} is not a size",
            where=f"tensor '{tensor.name}'",
            fix="Export the model again.",
        )
    return Entry(fields.get("location", ""), offset, length)


def locate(model: onnx.ModelProto, path: Path | None) -> ExternalFiles | None:
    """Find and check the files of all external tensors; None where the model has none.

    A file may be a symbolic link, as model hubs make them, as long as it really lies in the folder that the
    model was named in, or in the folder of the model's real file.

    Raises:
        ModelError: a file is missing, outside the model's folder, or shorter than declared.
    """
    found = [tensor for tensor in tensors(model) if is_external(tensor)]
    if not found:
        return None
    if path is None:
        raise ModelError(
            "external-data-without-folder",
            f"tensor '{found[0].name}' has external data, but a model in memory has no folder",
            where="the model",
            fix="Give the path of the model's file, or load its external data first.",
        )
    roots = (path.parent.resolve(), path.resolve().parent)
    files: dict[str, Path] = {}
    sizes: dict[str, int] = {}
    for tensor in found:
        place = entry(tensor)
        if place.location not in files:
            files[place.location] = real = _real(place.location, path.parent, roots=roots)
            sizes[place.location] = real.stat().st_size
        _check_length(tensor, place, path=files[place.location], size=sizes[place.location])
    size_bytes = sum({real: sizes[location] for location, real in files.items()}.values())
    return ExternalFiles(folder=_common(roots[0], files), files=files, size_bytes=size_bytes)


def _real(location: str, folder: Path, *, roots: tuple[Path, Path]) -> Path:
    relative = Path(os.path.normpath(location.replace("\\", "/")))
    real = (folder / relative).resolve()
    escapes = not location or relative.is_absolute() or ".." in relative.parts
    if escapes or not any(real.is_relative_to(root) for root in roots):
        raise ModelError(
            "external-data-outside",
            f"external data '{location}' lies outside the model's folder",
            where=str(folder / location),
            fix=f"Move the file into '{folder}' and export the model with a relative location.",
        )
    if not real.is_file():
        raise ModelError(
            "external-data-missing",
            f"external data '{location}' is {'not a file' if real.exists() else 'missing'}",
            where=str(folder / location),
            fix=f"Put the file '{location}' beside the model; it belongs to it.",
        )
    return real


def _check_length(tensor: onnx.TensorProto, place: Entry, *, path: Path, size: int) -> None:
    declared, needed = place.length or nbytes(tensor), nbytes(tensor)
    if place.offset + max(declared, needed) > size or (place.length and place.length < needed):
        raise ModelError(
            "external-data-short",
            f"tensor '{tensor.name}' needs {needed} bytes (declared {declared}) from offset {place.offset}, "
            f"the file has {size}",
            where=str(path),
            fix="The file is truncated or belongs to another model: copy it again.",
        )


def _common(folder: Path, files: Mapping[str, Path]) -> Path:
    if all(real.is_relative_to(folder) for real in files.values()):
        return folder
    return Path(os.path.commonpath([real.parent for real in files.values()]))
