"""Hashes of a model and of a graph made from it, their external data included."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantool.graph.external import ExternalFiles
    from quantool.graph.load import Loaded


def model_identity(loaded: Loaded) -> str:
    """The hash of a model's file; with external data, of that and the content of its files."""
    if loaded.external is None or not loaded.external.beside(loaded.source.path):
        return loaded.source.sha256
    return hashlib.sha256(f"{loaded.source.sha256}\n{_content(loaded.external)}".encode()).hexdigest()


def graph_identity(data: bytes, external: ExternalFiles | None) -> str:
    """The hash of a serialized graph, and of the files that it refers to."""
    digest = hashlib.sha256(data)
    if external is not None:
        digest.update(_content(external).encode())
    return digest.hexdigest()


def _content(external: ExternalFiles) -> str:
    lines = []
    for location, path in sorted(external.files.items()):
        with path.open("rb") as file:
            lines.append(f"{location} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return "\n".join(lines)
