"""The incumbent, onnxruntime.quantization, on the same model and data with the settings that suit it best.

Its opset is raised where per-channel weights need it, its own pre-processing runs first, activations are uint8 and
weights int8 per channel: on x86 CPUs this beats its defaults nearly everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.real import measure, wheels
from tests.real.model import Feed, RealModel

PER_CHANNEL_OPSET, PER_CHANNEL_IR = 13, 8
LAYERS = ["Conv", "MatMul", "Gemm"]
HERE = Path(__file__).parent

# It stops with a ValueError where a bias meets per-channel weights and the input of its layer is large.
NO_WEIGHT_ADJUSTMENT = {"QDQDisableWeightAdjustForInt32Bias": True}
# A configuration counts as the incumbent's best only if it saves something: dynamic on a convolutional network
# quantizes the last MatMul alone, which costs no accuracy and is worth nothing.
LARGEST_SIZE_RATIO, LEAST_SPEEDUP = 0.8, 1.1

Quantize = Callable[["Attempt"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a configuration."""

    model: RealModel
    source: Path
    target: Path
    extra_options: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one configuration came to: its figures, or why it has none."""

    config: str
    figures: measure.Figures | None
    error: str | None


class _Feeds(quantization.CalibrationDataReader):  # type: ignore[misc]  # the incumbent ships no types
    def __init__(self, feeds: Iterator[Feed]) -> None:
        self._feeds = feeds

    def get_next(self) -> dict[str, Any] | None:
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def _static(attempt: Attempt, **settings: Any) -> None:
    quantization.quantize_static(
        str(attempt.source),
        str(attempt.target),
        _Feeds(iter(attempt.model.calib())),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
        extra_options=dict(attempt.extra_options),
        **settings,
    )


def _qdq_all(attempt: Attempt) -> None:
    _static(attempt, quant_format=quantization.QuantFormat.QDQ)


def _qdq_layers(attempt: Attempt) -> None:
    _static(attempt, quant_format=quantization.QuantFormat.QDQ, op_types_to_quantize=LAYERS)


def _qoperator(attempt: Attempt) -> None:
    _static(attempt, quant_format=quantization.QuantFormat.QOperator)


def _dynamic(attempt: Attempt) -> None:
    # Its default also takes Conv, many times slower than float, and LSTM, which ruins the speech models.
    quantization.quantize_dynamic(
        str(attempt.source),
        str(attempt.target),
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
    )


CONFIGS: Mapping[str, Quantize] = {
    "QDQ, all operators": _qdq_all,
    "QDQ, Conv/MatMul/Gemm": _qdq_layers,
    "QOperator": _qoperator,
    "dynamic": _dynamic,
}


def outcomes(model: RealModel) -> list[Outcome]:
    """Return what each configuration came to; a machine that has measured this very pair before remembers."""
    record = wheels.cache_folder() / "incumbent" / f"{model.name}-{_fingerprint(model)}.json"
    if record.exists():
        return [_from_json(entry) for entry in json.loads(record.read_text(encoding="utf-8"))]
    # It leaves files in the working folder, so it gets one of its own.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        attempts = _attempts(model, Path(folder))
        found = [_outcome(config, attempts) for config in CONFIGS]
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in found], indent=1), encoding="utf-8")
    return found


def best(model: RealModel, found: list[Outcome]) -> Outcome | None:
    """Return the outcome with the best task metric, then the best SQNR; None where every configuration failed.

    Outcomes that save something come first.
    """
    usable = [(outcome, outcome.figures) for outcome in found if outcome.figures is not None]
    if not usable:
        return None
    return max(usable, key=lambda pair: (_saves(pair[1]), model.gain(pair[1].metric, 0.0), pair[1].sqnr_db))[0]


def _saves(figures: measure.Figures) -> bool:
    return figures.size_ratio <= LARGEST_SIZE_RATIO or figures.speedup >= LEAST_SPEEDUP


def _outcome(config: str, attempts: Sequence[Attempt]) -> Outcome:
    """Return the figures of the first attempt that yields a model that loads and runs, else the first error."""
    errors: list[str] = []
    for attempt in attempts:
        try:
            CONFIGS[config](attempt)
            if _holds_integers(onnx.load(attempt.target).graph):
                return Outcome(config=config, figures=measure.figures(attempt.model, attempt.target), error=None)
            errors.append("nothing quantized")
        except Exception as error:  # it fails in many ways, and every one of them is a figure of the table
            lines = str(error).strip().splitlines() or [""]
            errors.append(f"{type(error).__name__}: {lines[0][:200]}")
        finally:
            attempt.target.unlink(missing_ok=True)
    return Outcome(config=config, figures=None, error=errors[0])


def _attempts(model: RealModel, folder: Path) -> list[Attempt]:
    """Return the tries in the order of its own advice: pre-processed, then what people do when that fails."""
    raised = _raised(model.path, folder)
    prepared = _prepared(raised)
    ways: list[tuple[Path, Mapping[str, bool]]] = [(prepared, {}), (prepared, NO_WEIGHT_ADJUSTMENT), (raised, {})]
    target = folder / "quantized.onnx"
    return [Attempt(model=model, source=source, target=target, extra_options=options) for source, options in ways]


def _raised(path: Path, folder: Path) -> Path:
    """Return a copy of the model at an opset that has per-channel weights."""
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < PER_CHANNEL_OPSET:
        model = onnx.version_converter.convert_version(model, PER_CHANNEL_OPSET)
        model.ir_version = max(model.ir_version, PER_CHANNEL_IR)
    target = folder / "raised.onnx"
    onnx.save(model, target)
    return target


def _prepared(raised: Path) -> Path:
    """Return the model after the incumbent's pre-processing, or as it was where that fails."""
    prepared = raised.with_name("prepared.onnx")
    for skip_symbolic_shape in (False, True):
        try:
            quant_pre_process(str(raised), str(prepared), skip_symbolic_shape=skip_symbolic_shape)
        except Exception:  # its symbolic shape inference gives up on many models; it advises to go on without
            continue
        return prepared
    return raised


def _holds_integers(graph: onnx.GraphProto) -> bool:
    for node in graph.node:
        if node.op_type.startswith(("Q", "DynamicQuantize")) or "Integer" in node.op_type:
            return True
        if any(_holds_integers(attribute.g) for attribute in node.attribute if attribute.HasField("g")):
            return True
    return False


def _fingerprint(model: RealModel) -> str:
    """Return a digest of all that the outcomes depend on: model, data, versions and the bed's own code."""
    digest = hashlib.sha256(model.path.read_bytes())
    for feed in (*model.calib(), *model.eval_feeds()):
        for name in sorted(feed):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(feed[name]).tobytes())
    versions = (onnx.__version__, onnxruntime.__version__, np.__version__)
    digest.update("/".join(versions).encode())
    for source in sorted((HERE / "incumbent.py", HERE / "measure.py", *HERE.glob("models/*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _from_json(entry: dict[str, Any]) -> Outcome:
    figures = entry["figures"]
    return Outcome(
        config=entry["config"],
        figures=None if figures is None else measure.Figures(**figures),
        error=entry["error"],
    )
