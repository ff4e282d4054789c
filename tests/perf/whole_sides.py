"""The processes that tests.perf.whole starts: one that writes a model and its samples, and the incumbent."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]


def prepare(name: str, folder: Path, samples: int) -> None:
    """Write ``model.onnx`` and ``data/`` with one sample a file."""
    model, feeds = _sample(name) if (ROOT / f"sample_models/{name}.onnx").exists() else _real(name)
    shutil.copy(model, folder / "model.onnx")
    data = folder / "data"
    data.mkdir()
    for number, feed in enumerate(feeds):
        if number == samples:
            break
        np.savez(data / f"{number:05}.npz", **{key: np.asarray(array) for key, array in feed.items()})


def _sample(name: str) -> tuple[Path, Iterator[Mapping[str, Any]]]:
    arrays = dict(np.load(ROOT / f"sample_models/{name}.calib.npz"))
    inputs = {key: array for key, array in arrays.items() if not key.startswith("label")}
    count = min(len(array) for array in inputs.values())
    feeds = ({key: array[i : i + 1] for key, array in inputs.items()} for i in range(count))
    return ROOT / f"sample_models/{name}.onnx", feeds


def _real(name: str) -> tuple[Path, Iterator[Mapping[str, Any]]]:
    from tests.real.zoo import ZOO

    model = ZOO[name]()
    return model.path, iter(model.calib())


def incumbent(method: str, folder: Path, way: str) -> None:
    """Raise the opset where per-channel weights need it, pre-process, calibrate, and write the result."""
    from onnxruntime import quantization

    from tests.real.incumbent import NO_WEIGHT_ADJUSTMENT, _prepared, _raised

    class Feeds(quantization.CalibrationDataReader):  # type: ignore[misc]  # it ships no types
        def __init__(self) -> None:
            self._paths = iter(sorted((folder / "data").iterdir()))

        def get_next(self) -> dict[str, Any] | None:
            path = next(self._paths, None)
            return None if path is None else dict(np.load(path))

    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    with contextlib.chdir(work):
        quantization.quantize_static(
            str(_prepared(_raised(folder / "model.onnx", work))),
            str(work / "quantized.onnx"),
            Feeds(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod[method],
            extra_options=dict(NO_WEIGHT_ADJUSTMENT) if way == "no-adjustment" else {},
        )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    kind, *words = sys.argv[1:]
    if kind == "prepare":
        prepare(words[0], Path(words[1]), int(words[2]))
    else:
        incumbent(words[0], Path(words[1]), words[2])
