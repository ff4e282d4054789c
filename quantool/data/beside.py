"""Data that stands beside a model."""

from __future__ import annotations

from pathlib import Path

from quantool.data.folder import data_sets_in


def find_beside(model: Path) -> Path | None:
    """What calibrates ``NAME.onnx`` without being named: ``NAME.calib.npz``, ``NAME.calib/`` or test data sets.

    The first that exists. For ONNX's ``test_data_set_*`` folders it is the folder that holds them.
    """
    archive = model.with_name(f"{model.stem}.calib.npz")
    if archive.is_file():
        return archive
    folder = model.with_name(f"{model.stem}.calib")
    if folder.is_dir():
        return folder
    # Of the model's own folder only the sets inside count: a loose input_0.pb is nobody's data set.
    inside = [path for path in data_sets_in(model.parent) if path != model.parent]
    return model.parent if inside else None
