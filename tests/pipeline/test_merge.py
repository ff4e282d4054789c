"""quantool merge: what it says, what it refuses, and what it warns of."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeline.bed as bed
import quantool
from pipeline.bed import Shell, feeds
from quantool.errors import OptionError, QuantoolError


@pytest.fixture
def halves(ready: Shell) -> Shell:
    """The files of both halves of ``d.npz``."""
    for number in (1, 2):
        assert ready(f"calibrate m.onnx --data d.npz --shard {number}/2 -o {number}.qcal").code == 0
    return ready


def test_merge_tells_what_it_wrote(halves: Shell) -> None:
    found = halves("merge 2.qcal 1.qcal -o all.qcal --json").document
    assert (found["status"], found["exit_code"], found["errors"], found["warnings"]) == ("done", 0, [], [])
    assert found["data"] == {"source": "d.npz (24 feeds)", "samples": 24, "held_out": False}
    assert found["output"]["size_bytes"] == Path("all.qcal").stat().st_size
    ran = halves("merge 1.qcal 2.qcal -o again.qcal")
    assert "2 parts merged: " in ran.out
    assert "calibrated on 24 samples." in ran.out
    assert ran.err == ""


def test_one_file_is_merged_to_itself(halves: Shell) -> None:
    assert halves("merge 1.qcal -o copy.qcal").code == 0
    assert Path("copy.qcal").read_bytes() == Path("1.qcal").read_bytes()


def test_samples_that_count_twice_are_warned_of(halves: Shell) -> None:
    (note,) = halves("merge 1.qcal 2.qcal 1.qcal -o all.qcal --json").document["warnings"]
    assert note["code"] == "duplicate-samples"
    assert note["what"].startswith("12 samples stand in more than one part")
    # The same sample twice in one data set is that data's own affair.
    twice = quantool.calibrate("m.onnx", data=[*feeds(3), *feeds(3)])
    twice.save("twice.qcal")
    assert halves("merge twice.qcal -o t.qcal --json").document["warnings"] == []


def test_statistics_of_other_models_and_options_are_refused_with_the_reason(halves: Shell) -> None:
    bed.save(bed.mlp(), Path("other.onnx"))
    quantool.calibrate("other.onnx", data=[{"x": bed.normal(1, 8)}], output="other.qcal")
    quantool.calibrate("m.onnx", data="d.npz", output="full.qcal", collect=["full"])
    quantool.calibrate("m.onnx", data="d.npz", output="head.qcal", include_op=["Gemm"])
    quantool.calibrate("m.onnx", data="d.npz", output="moving.qcal", calibrator="moving-average")
    for name, words in {
        "other": "belong to the model",
        "full": "every element",
        "head": "in one of them only",
        "moving": "one holds histogram",
    }.items():
        ran = halves(f"merge 1.qcal {name}.qcal -o all.qcal")
        assert ran.code == 2
        assert words in ran.err
        assert f"where: {name}.qcal: " in ran.err
    with pytest.raises(QuantoolError, match="cannot be merged"):
        quantool.merge("moving.qcal", "moving.qcal")
    assert not Path("all.qcal").exists()


def test_outputs_are_guarded_as_everywhere(halves: Shell) -> None:
    before = Path("2.qcal").read_bytes()
    for line, words in {
        "merge 1.qcal": "not told where to write",
        "merge 1.qcal -o 2.qcal": "exists already",
        "merge 1.qcal 2.qcal -o 2.qcal --force": "is read by this run",
        "merge 1.qcal gone.qcal -o all.qcal": "cannot be read",
        "merge 1.qcal m.onnx -o all.qcal": "no undamaged .qcal file",
        "merge -o all.qcal": "Missing argument 'FILES...'",
    }.items():
        ran = halves(line)
        assert ran.code == 2
        assert words in ran.err
    assert Path("2.qcal").read_bytes() == before
    assert halves("merge 1.qcal -o 2.qcal --force").code == 0


def test_python_merges_files_and_statistics(halves: Shell) -> None:
    whole = quantool.calibrate("m.onnx", data="d.npz")
    merged = quantool.merge(quantool.Stats.load("2.qcal"), "1.qcal", output="all.qcal")
    assert merged.to_bytes() == whole.to_bytes() == Path("all.qcal").read_bytes()
    with pytest.raises(OptionError, match="nothing to merge"):
        quantool.merge()
    other = quantool.calibrate(bed.mlp(), data=[{"x": bed.normal(1, 8)}])
    with pytest.raises(QuantoolError, match="part 2: statistics"):
        quantool.merge("1.qcal", other)
