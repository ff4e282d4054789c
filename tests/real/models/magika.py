"""magika: what type is this file? Its names tell the truth, its first and last bytes are all the model sees."""

from __future__ import annotations

import functools
import hashlib
import json
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np

from tests.real import wheels
from tests.real.model import Feed, RealModel, chance_of_shares, top1_accuracy

PIECE, BLOCK, PADDING = 1024, 4096, 256
SMALLEST_FILE = 64
PER_LABEL = 40
CALIBRATION, EVALUATION = 64, 400
OUTPUT = "target_label"
LABELS = {
    ".bat": "batch",
    ".c": "c",
    ".css": "css",
    ".csv": "csv",
    ".f90": "fortran",
    ".gif": "gif",
    ".gz": "gzip",
    ".html": "html",
    ".ico": "ico",
    ".ini": "ini",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".npy": "npy",
    ".npz": "npz",
    ".onnx": "onnx",
    ".pdf": "pdf",
    ".pem": "pem",
    ".png": "png",
    ".ps": "postscript",
    ".py": "python",
    ".pyc": "pythonbytecode",
    ".pyi": "python",
    ".rst": "rst",
    ".sh": "shell",
    ".so": "elf",
    ".svg": "svg",
    ".toml": "toml",
    ".ttf": "ttf",
    ".wav": "wav",
    ".whl": "zip",
    ".xml": "xml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".zip": "zip",
}
# Only what every machine that runs the bed has: the standard library, three packages it needs, the fonts.
PACKAGES = ("numpy", "onnx", "onnxruntime")


def _roots() -> list[Path]:
    paths = sysconfig.get_paths()
    packages = [Path(paths["purelib"]) / name for name in PACKAGES]
    return [Path(paths["stdlib"]), *packages, Path("/usr/share/fonts"), Path("/usr/share/xml")]


@functools.cache
def _files() -> tuple[tuple[Path, str], ...]:
    """Return files with their labels in an order that is random but the same wherever the files are."""
    by_label: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for root in _roots():
        for path in root.rglob("*"):
            label = LABELS.get(path.suffix)
            inside = path.relative_to(root)
            if label is None or "site-packages" in inside.parts or not path.is_file():
                continue
            if path.stat().st_size >= SMALLEST_FILE:
                rank = hashlib.sha256(inside.as_posix().encode()).hexdigest()
                by_label[label].append((rank, path))
    chosen = [(rank, path, label) for label, files in by_label.items() for rank, path in sorted(files)[:PER_LABEL]]
    return tuple((path, label) for _, path, label in sorted(chosen))


def _feed(path: Path) -> Feed:
    """Return the bytes as magika reads them: stripped pieces of both ends, padded with 256 away from the ends."""
    content = path.read_bytes()
    first = content[:BLOCK].lstrip()[:PIECE]
    last = content[-BLOCK:].rstrip()[-PIECE:]
    row = np.full((1, 2 * PIECE), PADDING, np.int32)
    row[0, : len(first)] = np.frombuffer(first, np.uint8)
    row[0, 2 * PIECE - len(last) :] = np.frombuffer(last, np.uint8)
    return {"bytes": row}


@functools.cache
def _samples(start: int, stop: int) -> tuple[tuple[Feed, ...], tuple[int, ...]]:
    config = json.loads(wheels.fetch(wheels.MAGIKA_CONFIG).read_text())
    space: list[str] = config["target_labels_space"]
    files = _files()[start:stop]
    return tuple(_feed(path) for path, _ in files), tuple(space.index(label) for _, label in files)


def build() -> RealModel:
    def evaluation() -> tuple[tuple[Feed, ...], tuple[int, ...]]:
        return _samples(CALIBRATION, CALIBRATION + EVALUATION)

    return RealModel(
        name="magika",
        path=wheels.fetch(wheels.MAGIKA),
        calib=lambda: _samples(0, CALIBRATION)[0],
        eval_feeds=lambda: evaluation()[0][:128],
        evaluate=lambda run: top1_accuracy(run, *evaluation(), output=OUTPUT),
        metric="accuracy",
        higher_is_better=True,
        resolution=chance_of_shares(len(evaluation()[0])),
    )
