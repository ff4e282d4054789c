"""Calibrate once, decide later: a .qcal file serves any calibrator, format and formula, without running the model."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell, feeds
from quantool.errors import DataError, QuantoolError

CHOICES = {
    "the default": {},
    "minmax": {"calibrator": "minmax"},
    "percentile": {"calibrator": "percentile"},
    "entropy": {"calibrator": "entropy"},
    "qoperator": {"format": "qoperator"},
    "symmetric": {"formula": "onnx-symmetric"},
    "min-first": {"formula": "tf-min-first"},
    "scaled": {"formula": "tf-scaled"},
    "per tensor": {"granularity": "tensor"},
    "int8 activations": {"activations": "int8"},
    "16 bits": {"activations": "uint16"},
    "another target": {"target": "cpu-arm64"},
    "some excluded": {"exclude": ["second"]},
}


class Counter:
    """How often and with which feeds models are run for their activations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        for name in ("calibration.statistics", "source", "calibration.shards"):
            module = import_module(f"quantool.pipeline.{name}")
            monkeypatch.setattr(module, "tap", self._counted(module.tap))

    def _counted(self, tap: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            for found in tap(*args, **kwargs):
                self.runs += 1
                yield found

        return counted


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts from here on."""
    return Counter(monkeypatch)


@pytest.mark.parametrize("choice", CHOICES)
def test_one_calibration_serves_every_choice_without_running_the_model(
    ready: Shell, counter: Counter, choice: str
) -> None:
    options = CHOICES[choice]
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    assert counter.runs == 24
    before = counter.runs
    given = quantool.quantize("m.onnx", ranges="s.qcal", **options)
    assert counter.runs == before
    assert given.report.verification is None
    # The same as ranges of a run of its own over the same feeds, none of them held out.
    own = quantool.quantize("m.onnx", data="d.npz", verify_data=feeds(8, seed=9), effort="fast", **options)
    assert counter.runs == before + 24
    assert given.model == own.model


def test_the_command_line_does_the_same(ready: Shell, counter: Counter) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    counter.runs = 0
    ran = ready("quantize m.onnx --ranges s.qcal --calibrator entropy")
    assert (ran.code, counter.runs) == (0, 0)
    assert ran.out.splitlines()[0] == "Data: ranges of s.qcal (24 samples)"
    assert "outputs were not compared (no data)" in ran.out


def test_data_beside_given_ranges_verifies_and_does_not_calibrate(ready: Shell, counter: Counter) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    counter.runs = 0
    ran = ready("quantize m.onnx --ranges s.qcal --data d.npz --min-sqnr 20 --effort fast --json")
    found = ran.document
    assert (ran.code, counter.runs) == (0, 0)
    assert found["verification"]["samples"] == 6
    assert found["data"] == {
        "source": "ranges of s.qcal (24 samples), verified on d.npz (24 feeds), which calibrated too",
        "samples": 24,
        "held_out": False,
    }  # fmt: skip
    assert "on 6 samples that also calibrated." in found["verdict"]
    assert found["recipe"]["ranges"] == "s.qcal"


def test_new_samples_beside_a_file_judge_what_its_sums_and_moments_give(ready: Shell) -> None:
    """GPTQ and bias correction come from the file alone: no feed that fits is at hand."""
    command = "quantize m.onnx --ranges s.qcal --verify-data new.npz --effort max --json"
    np.savez("new.npz", image=bed.normal(20, 3, 8, 8, seed=77))
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --collect gram").code == 0
    found = ready(command).document
    assert (found["data"]["held_out"], found["verification"]["samples"]) == (True, 20)
    names = [trial["name"] for trial in found["trials"]]
    assert names[:2] == ["mse ranges", "minmax ranges"]
    assert any("GPTQ in 3 layers" in name for name in names)
    assert any("bias correction" in name for name in names)
    assert all(warning["code"] != "not-tried" for warning in found["warnings"])
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --force").code == 0
    names = [trial["name"] for trial in ready(f"{command} --force").document["trials"]]
    assert any("bias correction" in name for name in names)
    assert not any("GPTQ" in name for name in names)


def test_inspect_shows_what_a_file_holds(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --collect gram").code == 0
    found = ready("inspect s.qcal --json").document
    assert (found["command"], found["samples"], found["full"]) == ("inspect", 24, False)
    assert found["sources"] == ["d.npz (24 feeds)"]
    rows = {row["name"]: row for row in found["tensors"]}
    image = rows["image"]
    assert (image["kind"], image["count"], image["channels"], image["nonfinite"]) == ("histogram", 24 * 192, 3, 0)
    assert image["observed_min"] < image["mean"] < image["observed_max"]
    assert len(image["grams"]) == 1
    shown = ready("inspect s.qcal").out
    assert "24" in shown
    assert "d.npz (24 feeds)" in shown
    assert all(name in shown for name in rows)
    ran = ready("inspect gone.qcal --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "stats-unreadable")


def test_what_cannot_be_tried_without_new_samples_is_said(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --collect gram").code == 0
    found = ready("quantize m.onnx --ranges s.qcal --data d.npz --effort max --json").document
    assert found["trials"] == []
    (warning,) = [each for each in found["warnings"] if each["code"] == "not-tried"]
    assert "no samples are known to be new to the calibration" in warning["what"]
    assert "--verify-data" in warning["fix"]


def test_statistics_in_memory_serve_too_and_merge(ready: Shell) -> None:
    parts = [quantool.calibrate("m.onnx", data=part) for part in (feeds()[:7], feeds()[7:])]
    merged = parts[1].merge(parts[0])
    whole = quantool.calibrate("m.onnx", data="d.npz", output="s.qcal")
    # only where the samples came from tells them apart
    assert replace(merged, sources=whole.sources).to_bytes() == whole.to_bytes() == Path("s.qcal").read_bytes()
    result = quantool.quantize("m.onnx", ranges=merged)
    assert result.model == quantool.quantize("m.onnx", ranges="s.qcal").model
    assert result.report.data is not None
    assert result.report.data.source == "ranges in memory (24 samples)"


def test_ranges_of_another_model_are_refused(ready: Shell) -> None:
    bed.save(bed.mlp(), Path("other.onnx"))
    stats = quantool.calibrate("other.onnx", data=[{"x": bed.normal(1, 8)}], output="o.qcal")
    ran = ready("quantize m.onnx --ranges o.qcal --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "stats-other-model")
    with pytest.raises(QuantoolError, match="belong to the model"):
        quantool.quantize("m.onnx", ranges=stats)


@pytest.mark.parametrize(
    ("content", "code"), [(None, "stats-unreadable"), (b"", None), (b"PK\x03\x04 and so on", None)]
)
def test_a_file_that_holds_no_ranges_is_refused(ready: Shell, content: bytes | None, code: str | None) -> None:
    if content is not None:
        Path("s.qcal").write_bytes(content)
    ran = ready("quantize m.onnx --ranges s.qcal --json")
    assert (ran.code, ran.document["status"]) == (2, "refused")
    assert code in (None, ran.document["errors"][0]["code"])
    assert "s.qcal" in ran.err


def test_moving_averages_are_collected_where_asked(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal").code == 0
    ran = ready("quantize m.onnx --ranges s.qcal --calibrator moving-average")
    assert ran.code == 2
    assert "Calibrate again with this calibrator" in ran.err
    assert ready("calibrate m.onnx --data d.npz -o a.qcal --calibrator moving-average").code == 0
    for calibrator in ("moving-average", "mse", "entropy"):
        line = f"quantize m.onnx --ranges a.qcal --calibrator {calibrator} -o {calibrator}.onnx"
        assert ready(line).code == 0


def test_what_was_left_out_of_the_calibration_is_an_error_that_says_what_to_do(ready: Shell) -> None:
    assert ready("calibrate m.onnx --data d.npz -o s.qcal --include-op Gemm").code == 0
    with pytest.raises(DataError, match="no statistic was collected") as caught:
        quantool.quantize("m.onnx", ranges="s.qcal")
    assert "Calibrate again with the options of this run" in caught.value.fix
    quantool.quantize("m.onnx", ranges="s.qcal", include_op=["Gemm"])


def test_calibrate_reports_what_it_did(ready: Shell) -> None:
    ran = ready("calibrate m.onnx --data d.npz -o s.qcal --json")
    found = ran.document
    assert (found["status"], found["data"]) == (
        "done", {"source": "d.npz (24 feeds)", "samples": 24, "held_out": False}
    )  # fmt: skip
    assert found["output"]["size_bytes"] == Path("s.qcal").stat().st_size
    assert "24 samples" in found["verdict"]
    assert [row["name"] for row in found["nodes"]] == [name for name, _, _ in bed.given_nodes(bed.cnn().graph)]
    assert ready("calibrate m.onnx -o t.qcal").code == 2
    assert not Path("t.qcal").exists()
    ran = ready("calibrate m.onnx --data random -o t.qcal")
    assert ran.out.startswith("Data: random data")
