"""The shipped models through the whole path, judged on every evaluation image by what a user cares about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import quantool
from pipeline.bed import SAMPLES, Shell
from quantool.report.model import Report
from quantool.schema import AnyArray

NAMES = ("digits_mlp", "digits_cnn", "digits_depthwise", "digits_transformer")
FORMATS = ("qdq", "qoperator")
#: what the project promises of a static model with 8 bits
MOST_POINTS_LOST, LEAST_SQNR_DB = 0.3, 28.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One quantized sample model. scores: float32[images, 10]; points_lost: of accuracy, in per cent."""

    report: Report
    scores: AnyArray
    points_lost: float
    sqnr_db: float
    compared_db: float


def scores_of(model: Path | bytes, name: str) -> tuple[AnyArray, AnyArray]:
    """What a model says of all evaluation images, one at a time as in use, and the labels."""
    with np.load(SAMPLES / f"{name}.eval.npz") as archive:
        arrays = dict(archive)
    labels = arrays.pop("labels")
    ((key, rows),) = arrays.items()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {key: row[None]})[0] for row in rows]), labels


@cache
def judged(name: str, form: str) -> Judged:
    """A sample model as its README tells to quantize it: with what stands beside it."""
    path = SAMPLES / f"{name}.onnx"
    result = quantool.quantize(path, format=form)
    before, labels = scores_of(path, name)
    after, _ = scores_of(result.model.SerializeToString(), name)
    hits = [float(np.mean(scores.argmax(1) == labels)) for scores in (before, after)]
    noise = np.square(before.astype(np.float64) - after).sum()
    compared = quantool.compare(path, result.model, data=SAMPLES / f"{name}.eval.npz").verification
    assert compared is not None
    ((_, output),) = compared.outputs.items()
    assert output.sqnr_db is not None
    return Judged(
        report=result.report,
        scores=after,
        points_lost=100 * (hits[0] - hits[1]),
        sqnr_db=float(10 * np.log10(np.square(before.astype(np.float64)).sum() / noise)),
        compared_db=output.sqnr_db,
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_static_quantization_keeps_accuracy_and_signal(name: str, form: str) -> None:
    found = judged(name, form)
    assert found.points_lost <= MOST_POINTS_LOST + 1e-9
    assert found.sqnr_db >= LEAST_SQNR_DB


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_of_one_model_agree_on_every_top_1(name: str) -> None:
    qdq, qoperator = (judged(name, form).scores for form in FORMATS)
    differ = np.flatnonzero(qdq.argmax(1) != qoperator.argmax(1))
    margins = [float(np.diff(np.sort(scores[i])[-2:])[0]) for i in differ for scores in (qdq, qoperator)]
    assert list(differ) == [], f"images {list(differ)}, margins {margins}"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_tool_says_of_the_evaluation_set_is_what_is_measured_here(name: str, form: str) -> None:
    found = judged(name, form)
    assert found.compared_db == pytest.approx(found.sqnr_db, abs=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_every_node_is_accounted_for_and_most_run_as_integers(name: str) -> None:
    report = judged(name, "qdq").report
    assert report.coverage is not None
    # Products of two activations stay float: a tenth of the transformer's multiplications.
    assert (report.coverage.macs or 0) > 0.85
    assert all(row.decision == "quantized" or row.reason is not None for row in report.nodes)
    assert report.data is not None
    assert report.data.held_out is True


def test_the_language_model_keeps_its_perplexity() -> None:
    path = SAMPLES / "chargpt.onnx"
    result = quantool.quantize(path)
    with np.load(SAMPLES / "chargpt.eval.npz") as archive:
        ids, labels = archive["ids"][:100], archive["labels"][:100]
    figures = []
    for model in (path, result.model.SerializeToString()):
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        logits = session.run(None, {"ids": ids})[0].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        picked = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        figures.append(float(np.exp(np.mean(np.log(np.exp(logits).sum(-1)) - picked))))
    assert figures[1] <= figures[0] * 1.02
    assert result.report.verification is not None
    assert all((o.sqnr_db or 0) >= 25 for o in result.report.verification.outputs.values())


def test_the_command_of_the_readme_works_on_every_model(shell: Shell) -> None:
    for name in (*NAMES, "chargpt"):
        for part in ("onnx", "calib.npz"):
            Path(f"{name}.{part}").write_bytes((SAMPLES / f"{name}.{part}").read_bytes())
        ran = shell(f"quantize {name}.onnx")
        assert (ran.code, ran.err) == (0, "")
        assert f"Data: {name}.calib.npz" in ran.out
        assert Path(f"{name}.int8.onnx").stat().st_size < 0.6 * Path(f"{name}.onnx").stat().st_size
