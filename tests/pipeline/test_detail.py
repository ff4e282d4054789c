"""What a report tells in detail where it is asked for: tensors, layers, fixes; and comparing what others wrote."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import quantool
from pipeline.bed import Shell, cnn, feeds, save
from pipeline.test_keep import boxes_and_scores
from pipeline.test_keep import feeds as detector_feeds
from quantool.pipeline.detail import layers
from quantool.report.json_schema import published_schema
from quantool.report.model import Report

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "sample_models" / "digits_cnn.onnx"


def detailed(folder: Path, model: object, data: object, **options: object) -> Report:
    """The report of a run that was asked for one."""
    report = quantool.quantize(model, data, report=folder / "r.json", force=True, **options).report  # type: ignore[arg-type]
    jsonschema.validate(json.loads((folder / "r.json").read_text()), published_schema())
    return report


def test_every_layer_and_tensor_of_a_network_is_measured(tmp_path: Path) -> None:
    report = detailed(tmp_path, cnn(), feeds())
    found = report.layers
    assert found is not None
    assert found.measured == found.candidates == len(found.rows)
    assert found.samples == layers.MOST_FEEDS
    assert [row.op_type for row in found.rows][:2] == ["Conv", "Relu"]
    assert {row.runs_as for row in found.rows} == {"integer"}
    assert found.rows[0].input_sqnr_db is None  # the graph's input is exact
    assert all(b.input_sqnr_db is not None for b in found.rows[1:])
    outputs = report.verification
    assert outputs is not None
    assert all(row.sqnr_db is not None and 10 < row.sqnr_db < 80 for row in found.rows)
    for row in report.tensors:
        assert row.histogram is not None, row.name
        assert row.sqnr_db is not None
        assert row.sqnr_db > 20
        assert row.observed_min is not None
        assert sum(row.histogram.counts) > 0
    ranges = [row for row in report.tensors if row.range is not None]
    assert {row.calibrator for row in ranges} == {report.recipe["calibrator"]}  # type: ignore[index]


def test_nothing_of_it_is_measured_unless_a_report_is_asked_for() -> None:
    report = quantool.quantize(cnn(), feeds()).report
    assert (report.layers, report.fixes) == (None, ())
    assert {row.histogram for row in report.tensors} == {None}
    assert report.environment is not None


def test_detail_changes_nothing_else(tmp_path: Path) -> None:
    plain = quantool.quantize(cnn(), feeds())
    full = quantool.quantize(cnn(), feeds(), report=tmp_path / "r.md")
    assert full.model == plain.model
    assert full.report.verification == plain.report.verification
    assert full.report.verdict is not None


def test_the_loss_starts_where_it_is_made_and_the_fix_is_to_spare_that(tmp_path: Path) -> None:
    report = detailed(tmp_path, boxes_and_scores(), detector_feeds(), include=["*"])
    assert report.layers is not None
    drops = {row.node: (row.input_sqnr_db or math.inf) - (row.sqnr_db or 0) for row in report.layers.rows[1:]}
    assert report.fixes[0].nodes == ("last",)
    assert report.fixes[0].gain_db > 5
    assert 0 < report.fixes[0].macs_share < 0.1
    assert all(math.isfinite(drop) for drop in drops.values())
    spared = quantool.quantize(boxes_and_scores(), detector_feeds(), exclude=["last"]).report
    before, after = (r.verification.outputs["y"] for r in (report, spared) if r.verification is not None)
    assert after.worst_channel_sqnr_db is not None
    assert before.worst_channel_sqnr_db is not None
    assert after.worst_channel_sqnr_db > before.worst_channel_sqnr_db + 5


def test_a_failed_gate_has_its_detail_too(tmp_path: Path) -> None:
    with pytest.raises(quantool.GateError) as failed:
        quantool.quantize(cnn(), feeds(), min_sqnr=200.0, report=tmp_path / "r.json")
    assert failed.value.report is not None
    assert failed.value.report.layers is not None
    document = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(document, published_schema())
    assert (document["status"], len(document["layers"]["rows"])) == (
        "gate-failed",
        len(failed.value.report.layers.rows),
    )


@pytest.mark.parametrize("options", [{"mode": "dynamic"}, {"mode": "weight-only"}, {"format": "qoperator"}])
def test_every_form_has_layers(options: dict[str, object], tmp_path: Path) -> None:
    found = detailed(tmp_path, cnn(), feeds(), **options).layers
    assert found is not None
    assert found.measured >= found.candidates - 2
    assert any(row.sqnr_db is not None for row in found.rows)


def test_without_data_weights_alone_have_detail(tmp_path: Path) -> None:
    report = detailed(tmp_path, cnn(), None, mode="weight-only")
    assert report.layers is None
    assert all(row.histogram is not None for row in report.tensors)


def test_layers_too_large_together_are_thinned_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = detailed(tmp_path, cnn(), feeds()).layers
    monkeypatch.setattr(layers, "MOST_BYTES", 3000)
    report = detailed(tmp_path, cnn(), feeds())
    assert whole is not None
    assert report.layers is not None
    assert 0 < report.layers.measured < whole.measured
    assert "layers-left-out" in {note.code for note in report.warnings}


# --- other tools ----------------------------------------------------------------------------------------


class Images:
    """Feeds as the incumbent reads them."""

    def __init__(self) -> None:
        self._feeds = iter([{"image": image[None]} for image in samples()[:32]])

    def get_next(self) -> dict[str, object] | None:
        return next(self._feeds, None)

    def __iter__(self) -> Iterator[object]:
        return self._feeds


def samples() -> np.ndarray:  # type: ignore[type-arg]
    """The images of the sample network."""
    return np.asarray(np.load(DIGITS.with_suffix(".calib.npz"))["image"])


def incumbent(form: str, path: Path) -> None:
    """The sample network as ONNX Runtime's own tool quantizes it."""
    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static

    logging.getLogger().setLevel(logging.ERROR)
    if form == "dynamic":
        quantize_dynamic(DIGITS, path)
    else:
        quantize_static(DIGITS, path, Images(), quant_format=QuantFormat[form])


@pytest.mark.parametrize(("form", "least"), [("QDQ", 20), ("QOperator", 24), ("dynamic", 28)])
@pytest.mark.filterwarnings("ignore")
def test_compare_follows_the_loss_through_what_the_incumbent_wrote(
    form: str, least: int, tmp_path: Path, shell: Shell
) -> None:
    incumbent(form, Path("q.onnx"))
    np.savez("d.npz", image=samples()[:24])
    assert shell(f"compare {DIGITS} q.onnx --data d.npz --report r.json --quiet").code == 0
    document = json.loads(Path("r.json").read_text())
    jsonschema.validate(document, published_schema())
    found = document["layers"]
    assert found["candidates"] == 28
    assert least <= found["measured"] == len(found["rows"])
    assert all(row["exact"] or 15 < row["sqnr_db"] < 80 for row in found["rows"])
    last = found["rows"][-1]
    output = document["verification"]["outputs"]["scores"]
    assert last["sqnr_db"] == pytest.approx(output["sqnr_db"], abs=3.0)  # 4 of the 24 samples
    low, high = document["latency"]["interval"]
    assert low <= document["latency"]["speedup"] <= high


def test_a_model_against_itself_has_no_significant_difference(shell: Shell) -> None:
    save(cnn(), Path("m.onnx"))
    np.savez("d.npz", image=np.concatenate([feed["image"] for feed in feeds(8)]))
    document = shell("compare m.onnx m.onnx --data d.npz", "--json").document
    assert all(row["exact"] and row["sqnr_db"] is None for row in document["layers"]["rows"])
    low, high = document["latency"]["interval"]
    if low <= 1 < high:
        assert "no significant difference in speed" in document["verdict"]
