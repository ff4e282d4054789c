"""quantool sensitivity: what rounding each operator costs, and the recipe that follows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import quantool
from pipeline.bed import Shell, branches, cnn, images, save
from pipeline.test_keep import boxes_and_scores, feeds, kept, network
from quantool.errors import DataError, OptionError


@pytest.fixture
def detector(shell: Shell) -> Shell:
    """A folder with a network whose last convolution ruins its output, and its data."""
    save(boxes_and_scores(), Path("m.onnx"))
    np.savez("d.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    return shell


def test_groups_are_ranked_by_what_rounding_them_alone_costs() -> None:
    found = quantool.sensitivity(boxes_and_scores(), feeds())
    names = [group.name for group in found.groups]
    assert names[0] == "last"
    assert sorted(names) == ["c0", "c1", "c2", "c3", "c4", "c5", "last"]
    assert {group.name: group.operators for group in found.groups}["c0"] == ("Conv", "Relu")
    levels = [group.sqnr_db for group in found.groups]
    assert levels == sorted(levels)
    assert levels[0] < found.score_db + 1 < levels[1]
    assert sum(group.noise_share for group in found.groups) == pytest.approx(1)
    assert sum(group.macs_share for group in found.groups) == pytest.approx(1)
    assert found.runs == 4 * (len(names) + 1)


def test_operators_that_share_a_scale_are_one_group() -> None:
    found = quantool.sensitivity(cnn(), [{"image": image[None]} for image in images(24)])
    groups = {group.operators for group in found.groups}
    assert ("Conv", "Relu") in groups
    assert ("GlobalAveragePool", "Flatten") in groups


def test_the_list_is_what_quantize_leaves_in_float_and_excluding_it_does_the_same() -> None:
    found = quantool.sensitivity(boxes_and_scores(), feeds())
    assert found.exclude == ("last",)
    assert found.kept_score_db is not None
    assert found.kept_score_db > found.score_db + 5
    result = quantool.quantize(boxes_and_scores(), feeds())
    assert set(kept(result.report)) == set(found.exclude)
    excluded = quantool.quantize(boxes_and_scores(), feeds(), exclude=list(found.exclude)).report
    assert kept(excluded) == {"last": "excluded"}
    assert excluded.verification is not None
    assert result.report.verification is not None
    assert excluded.verification.outputs == result.report.verification.outputs


def test_a_recipe_is_written_that_quantize_takes(detector: Shell) -> None:
    ran = detector("sensitivity m.onnx --data d.npz -o m.toml --json")
    assert (ran.code, ran.document["status"], ran.document["command"]) == (0, "done", "sensitivity")
    assert ran.document["exclude"] == ["last"]
    assert tomllib.loads(Path("m.toml").read_text()) == {"exclude": ["last"]}
    assert ran.document["output"]["path"] == "m.toml"
    quantized = detector("quantize m.onnx --data d.npz --recipe m.toml --json").document
    assert {row["name"]: row["decision"] for row in quantized["nodes"]}["last"] == "kept"


def test_the_page_shows_the_worst_groups_and_the_ready_list(detector: Shell) -> None:
    page = detector("sensitivity m.onnx --data d.npz --top 2").out
    assert 'exclude = ["last"]' in page
    assert "and 5 groups more" in page
    assert "1 node better left in float" in page


def test_a_recipe_that_exists_is_not_replaced_without_force(detector: Shell) -> None:
    Path("m.toml").write_text("# mine\n")
    ran = detector("sensitivity m.onnx --data d.npz -o m.toml --json")
    assert (ran.code, ran.document["errors"][0]["code"]) == (2, "output-exists")
    assert Path("m.toml").read_text() == "# mine\n"
    assert detector("sensitivity m.onnx --data d.npz -o m.toml --force").code == 0
    assert detector("sensitivity m.onnx --data d.npz -o d.npz --force").code == 2
    assert detector("sensitivity m.onnx --data d.npz --top 0").code == 2


def test_nothing_is_listed_where_all_lose_a_little() -> None:
    found = quantool.sensitivity(network("[last] y = Identity(h)"), feeds())
    assert found.exclude == ()
    assert found.recipe == ""
    assert "none is better left in float" in found.verdict


def test_samples_and_the_static_mode_are_needed(detector: Shell) -> None:
    with pytest.raises(DataError) as raised:
        quantool.sensitivity("m.onnx")
    assert raised.value.code == "no-data"
    with pytest.raises(OptionError) as refused:
        quantool.sensitivity("m.onnx", "d.npz", mode="dynamic")
    assert refused.value.code == "not-static"
    with pytest.raises(OptionError) as floating:
        quantool.sensitivity("m.onnx", "d.npz", activations="float8_e4m3fn", weights="float8_e4m3fn")
    assert floating.value.code == "not-measurable"


def test_branches_of_an_if_read_rounded_tensors(shell: Shell) -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((2, 6)).astype(np.float32)} for _ in range(20)]
    found = quantool.sensitivity(branches(), data, exclude=["inner"])
    assert [group.name for group in found.groups] == ["up"]
