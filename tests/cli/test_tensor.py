"""quantool tensor: the documents' worked examples, every formula against its kernel, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from quantool import kernels
from quantool.__main__ import main
from quantool.elements import ELEMENTS
from quantool.schema import AnyArray

TF_TYPES = ("quint8", "qint8", "quint16", "qint16", "qint32")
TF_FORMULAS = ("tf-min-combined", "tf-min-first", "tf-scaled")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def normal(*shape: int, seed: int = 0) -> AnyArray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32)


def call(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> dict[str, Any]:
    """Run `quantool tensor` with --json; its document."""
    assert main(["tensor", *line.split(), "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def codes(dtype: str, file: str = "q.npy") -> AnyArray:
    """Codes as the file stores them, in their own type."""
    stored, kind = np.load(file), np.dtype(getattr(ml_dtypes, dtype, dtype))
    return stored.view(kind) if dtype in ELEMENTS and ELEMENTS[dtype].floating else stored.astype(kind)


# --- worked examples of the documents -------------------------------------------------------------------


def test_min_combined_from_0_to_6_multiplies_by_255_over_6(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([-1, 0, 1, 2.5, 6, 7], np.float32))
    found = call(capsys, "x.npy -o q.npy --formula tf-min-combined --type quint8 --range 0:6")
    assert found["scale_factor"] == 255 / 6
    assert (found["range"], found["zero_point"], found["residual_shift"]) == ([0, 6], 0, 0)
    assert np.load("q.npy").tolist() == [0, 0, 43, 106, 255, 255]
    assert found["clipped_share"] == 2 / 6


def test_scaled_from_minus_10_to_9_has_the_factor_12_8(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([-10, -5, 0, 9, 9.921875, 10], np.float32))
    found = call(capsys, "x.npy -o q.npy --formula tf-scaled --type qint8 --range -10:9")
    assert found["scale_factor"] == np.float32(12.8)
    assert (found["scale"], found["range"]) == (10 / 128, [-10, 9.921875])
    assert np.load("q.npy").tolist() == [-128, -64, 0, 115, 127, 127]


def test_the_text_shows_both_in_few_digits(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([-10, 9], np.float32))
    assert main(["tensor", "x.npy", "--formula", "tf-scaled", "--type", "qint8", "--range", "-10:9"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"multiplies by +12\.8\n", out)
    assert re.search(r"range used +-10\.0\.\.9\.921875\n", out)
    assert all(label in out for label in ("scale", "zero point", "SQNR", "clipped"))
    assert "written" not in out


def test_quantize_linear_of_the_onnx_documents(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([0, 2, 3, 1000, -254, -1000], np.float32))
    found = call(capsys, "x.npy -o q.npy --formula onnx --type uint8 --scale 2 --zero-point 128")
    assert np.load("q.npy").tolist() == [128, 129, 130, 255, 1, 0]
    assert found["clipped_share"] == 2 / 6
    np.save("x.npy", np.array([0, 1, 2, 100000, 200], np.float32))
    call(capsys, "x.npy -o q.npy --force --formula onnx --type float8_e4m3fn --scale 2")
    assert codes("float8_e4m3fn").astype(float).tolist() == [0, 0.5, 1, 448, 96]


def test_axis_example_of_the_onnx_documents(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array(
        [[[[-162, 10], [-100, 232], [-20, -50]], [[-76, 0], [0, 252], [32, -44]],
          [[245, -485], [-960, -270], [-375, -470]]]], np.float32,
    )  # fmt: skip
    np.save("x.npy", x)
    np.save("s.npy", np.array([2, 4, 5], np.float32))
    np.save("z.npy", np.array([84, 24, 196], np.uint8))
    call(capsys, "x.npy -o q.npy --formula onnx --type uint8 --scale s.npy --zero-point z.npy --axis 1")
    expected = [3, 89, 34, 200, 74, 59, 5, 24, 24, 87, 32, 13, 245, 99, 4, 142, 121, 102]
    assert np.load("q.npy").ravel().tolist() == expected
    call(capsys, "q.npy -o y.npy --formula onnx --type uint8 --scale s.npy --zero-point z.npy --axis 1 --dequantize")
    assert np.load("y.npy").ravel().tolist() == [
        -162, 10, -100, 232, -20, -50, -76, 0, 0, 252, 32, -44, 245, -485, -960, -270, -375, -470,
    ]  # fmt: skip


# --- against the kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "--axis 0", "--axis -1", "--block-size 3", "--axis 0 --block-size 2"])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_onnx_codes_are_the_kernels_and_come_back(capsys: pytest.CaptureFixture[str], dtype: str, where: str) -> None:
    x = normal(5, 7)
    np.save("x.npy", x)
    found = call(capsys, f"x.npy -o q.npy --formula onnx-symmetric --type {dtype} {where}")
    axis = {"": None, "--axis 0": 0, "--axis -1": 1, "--block-size 3": 1}.get(where, 0)
    block = int(where.rsplit(maxsplit=1)[1]) if "block" in where else 0
    shape: tuple[int, ...] = () if axis is None else (x.shape[axis],)
    if block:
        shape = tuple(-(-extent // block) if i == axis else extent for i, extent in enumerate(x.shape))
    scale = np.asarray(found["scale"], np.float32).reshape(shape)
    zero = np.asarray(found["zero_point"]).astype(np.dtype(getattr(ml_dtypes, dtype, dtype))).reshape(shape)
    expected = kernels.quantize_linear(x, scale, zero, axis=axis or 0, block_size=block, opset=25)
    assert codes(dtype).tobytes() == expected.tobytes()
    np.save("s.npy", scale)
    np.save("z.npy", zero.astype(np.int32))
    call(capsys, f"q.npy -o y.npy --formula onnx --type {dtype} --scale s.npy --zero-point z.npy {where} --dequantize")
    back = np.load("y.npy")
    assert np.array_equal(back, kernels.dequantize_linear(expected, scale, zero, axis=axis or 0, block_size=block))
    assert found["sqnr_db"] == pytest.approx(10 * np.log10(np.square(x).sum() / np.square(x - back).sum()), abs=1e-4)
    assert found["clipped_share"] == 0 if not dtype.startswith("u") else found["clipped_share"] < 0.1


@pytest.mark.parametrize("axis", ["", "--axis 1"])
@pytest.mark.parametrize("dtype", TF_TYPES)
@pytest.mark.parametrize("formula", TF_FORMULAS)
def test_tensorflow_codes_are_the_kernels_and_come_back(
    capsys: pytest.CaptureFixture[str], formula: str, dtype: str, axis: str
) -> None:
    x = normal(6, 4)
    np.save("x.npy", x)
    line = f"x.npy -o q.npy --formula {formula} --type {dtype} {axis} --narrow-range --ensure-minimum-range 0.01"
    if axis and formula == "tf-min-first":
        assert "takes no axis" in call(capsys, line, code=2)["errors"][0]["what"]
        return
    found = call(capsys, line)
    lo, hi = (x.min(axis=0), x.max(axis=0)) if axis else (x.min(), x.max())
    arguments: dict[str, Any] = {
        "T": dtype, "mode": formula.removeprefix("tf-").replace("-", "_").upper(), "narrow_range": True,
        "axis": 1 if axis else -1,
    }  # fmt: skip
    expected, used_lo, used_hi = kernels.tf_quantize_v2(
        x, np.minimum(lo, np.float32(0)), np.maximum(hi, np.float32(0)), ensure_minimum_range=0.01, **arguments
    )
    assert np.array_equal(np.load("q.npy"), expected)
    assert np.array_equal(np.asarray(found["range"], np.float32), np.stack([used_lo, used_hi]))
    np.save("lo.npy", used_lo)
    np.save("hi.npy", used_hi)
    call(capsys, f"q.npy -o y.npy --formula {formula} --type {dtype} {axis} --narrow-range --range lo.npy:hi.npy "
                 "--dequantize")  # fmt: skip
    assert np.array_equal(np.load("y.npy"), kernels.tf_dequantize(expected, used_lo, used_hi, **arguments))
    assert [note["code"] for note in found["warnings"]] == ([] if formula == "tf-scaled" else ["option-ignored"])
    assert np.all(np.asarray(found["scale_factor"]) * np.asarray(found["scale"]) == pytest.approx(1))


def test_scaled_rounds_ties_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([0.5, 1.5, 2.5, -0.5, -127], np.float32))
    line = "x.npy -o q.npy --force --formula tf-scaled --type qint8 --narrow-range --round-mode"
    call(capsys, f"{line} half-to-even")
    assert np.load("q.npy").tolist() == [0, 2, 2, 0, -127]
    call(capsys, f"{line} HALF_AWAY_FROM_ZERO")
    assert np.load("q.npy").tolist() == [1, 2, 3, -1, -127]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("where", ["", "--axis 1", "--axis 3 --block-size 2"])
def test_directml_reads_a_scale_for_every_element(capsys: pytest.CaptureFixture[str], dtype: str, where: str) -> None:
    x = normal(2, 3, 4, 5)
    np.save("x.npy", x)
    found = call(capsys, f"x.npy -o q.npy --formula directml --type {dtype} {where} --feature-level 2.1")
    assert (found["feature_level"], found["expanded_bytes"]) == ("2.1", x.size * 5)
    onnx = call(capsys, f"x.npy -o o.npy --formula onnx --type {dtype} {where}")
    assert onnx["scale"] == found["scale"]
    assert Path("q.npy").read_bytes() == Path("o.npy").read_bytes()
    scales = np.random.default_rng(1).uniform(0.01, 0.1, x.shape).astype(np.float32)
    zeros = np.full(x.shape, 3, dtype)
    np.save("s.npy", scales)
    np.save("z.npy", zeros)
    line = f"--formula directml --type {dtype} --scale s.npy --zero-point z.npy --feature-level 6.0"
    call(capsys, f"x.npy -o d.npy {line}")
    expected = kernels.dml_quantize_linear(x, scales, zeros, output_dtype=dtype, feature_level="6.0")
    assert np.array_equal(np.load("d.npy"), expected)
    call(capsys, f"d.npy -o y.npy {line} --dequantize")
    assert np.array_equal(np.load("y.npy"), (expected.astype(np.float32) - 3) * scales)


def test_a_range_and_its_clipped_share(capsys: pytest.CaptureFixture[str]) -> None:
    x = normal(1000)
    np.save("x.npy", x)
    found = call(capsys, "x.npy --formula onnx --type uint8 --range -1:2 --narrow-range")
    assert (found["range"], found["output"]) == ([-1, 2], None)
    scale = np.float32(3 / 254)
    assert found["scale"] == scale
    beyond = (x < found["reach"][0] - scale / 2) | (x > found["reach"][1] + scale / 2)
    assert found["clipped_share"] == beyond.mean()
    assert found["reach"][0] == (1 - 1 - found["zero_point"]) * float(scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_other_input_types(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    x = (normal(3, 4) * 100).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    np.save("x.npy", x)
    found = call(capsys, "x.npy -o q.npy --formula onnx --type int8 --opset 23")
    taken = x.astype(np.float32) if dtype == "float64" else x
    kind = np.float32 if dtype == "int32" else taken.dtype
    expected = kernels.quantize_linear(taken, np.asarray(found["scale"], kind), np.int8(found["zero_point"]))
    assert np.array_equal(np.load("q.npy"), expected)
    assert found["input_dtype"] == str(taken.dtype)
    assert [note["code"] for note in found["warnings"]] == (["cast-to-float32"] if dtype == "float64" else [])


def test_division_follows_the_opset(capsys: pytest.CaptureFixture[str]) -> None:
    x = normal(4000).astype(np.float16)
    np.save("x.npy", x)
    stored = {}
    for opset in (21, 25):
        call(capsys, f"x.npy -o q.npy --force --formula onnx --type int16 --scale 0.001 --opset {opset}")
        stored[opset] = np.load("q.npy")
        assert np.array_equal(stored[opset], kernels.quantize_linear(x, np.float16(0.001), np.int16(0), opset=opset))
    assert not np.array_equal(stored[21], stored[25])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_arrays(capsys: pytest.CaptureFixture[str], shape: tuple[int, ...]) -> None:
    np.save("x.npy", np.ones(shape, np.float32))
    found = call(capsys, "x.npy -o q.npy --formula onnx --type int8")
    assert np.load("q.npy").shape == shape
    assert found["exact"] is True
    assert found["sqnr_db"] is None
    call(capsys, "x.npy -o q.npy --force --formula onnx --type int8 --axis 0", code=0 if shape else 2)


def test_nan_saturates_where_the_range_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([np.nan, np.inf, -np.inf, 1], np.float32))
    call(capsys, "x.npy -o q.npy --formula onnx --type int8 --range -1:1")
    assert np.load("q.npy").tolist()[:3] == [-128, 127, -128]
    error = call(capsys, "x.npy --formula onnx --type int8", code=2)["errors"][0]
    assert error["code"] == "nonfinite-values"


# --- refusals -------------------------------------------------------------------------------------------

REFUSALS = [
    ("--formula onnx", "--type", "not told the type"),
    ("--type int8", "--formula", "not told the formula"),
    ("--formula onx --type int8", "--formula", "Unknown formula 'onx'"),
    ("--formula onnx --type int5", "--type", "'int5'"),
    ("--formula tf-scaled --type int4", "--type", "'int4'"),
    ("--formula directml --type int16", "--type", "int16"),
    ("--formula onnx --type int8 --range 1", "--range", "--range is '1'"),
    ("--formula onnx --type int8 --range a:1", "--range", "--range is 'a'"),
    ("--formula onnx --type int8 --range 2:1", "--range", "lo at most hi"),
    ("--formula onnx --type int8 --range nan:1", "--range", "must be finite"),
    ("--formula tf-scaled --type qint8 --range 2:1", "--range", "lo at most hi"),
    ("--formula onnx --type int8 --scale big", "--scale", "--scale is 'big'"),
    ("--formula onnx --type int8 --scale 1 --range 0:1", "--range", "does not go with --scale"),
    ("--formula onnx --type int8 --scale 1 --narrow-range", "--narrow-range", "does not go with --scale"),
    ("--formula onnx --type int8 --zero-point 1", "--zero-point", "needs its scale"),
    ("--formula onnx --type int8 --scale 1 --zero-point 128", "--zero-point", "no code of int8"),
    ("--formula onnx --type int8 --scale 1 --zero-point 0.5", "--zero-point", "no code of int8"),
    ("--formula onnx --type float8_e5m2 --scale 1 --zero-point 1", "--zero-point", "no code of float8_e5m2"),
    ("--formula tf-scaled --type qint8 --scale 1", "--scale", "no such parameter"),
    ("--formula tf-scaled --type qint8 --block-size 2", "--block-size", "no such parameter"),
    ("--formula tf-scaled --type qint8 --opset 13", "--opset", "no such parameter"),
    ("--formula onnx --type int8 --feature-level 2.1", "--feature-level", "no such parameter"),
    ("--formula directml --type int8 --opset 13", "--opset", "no such parameter"),
    ("--formula directml --type int8 --feature-level 7", "--feature-level", "allowed: 1.0"),
    ("--formula onnx --type int8 --round-mode half-away-from-zero", "--round-mode", "rounds HALF_TO_EVEN"),
    ("--formula tf-min-first --type qint8 --round-mode half-to-even", "--round-mode", "HALF_AWAY_FROM_ZERO only"),
    ("--formula onnx --type int8 --axis 2", "--axis", "axis is 2"),
    ("--formula onnx --type int8 --axis x", "--axis", "--axis is 'x'"),
    ("--formula onnx --type int8 --block-size 0", "--block-size", "block_size is 0"),
    ("--formula onnx --type int4 --opset 19", "--opset", "need opset 21"),
    ("--formula onnx --type int8 --axis 1 --block-size 2 --opset 13", "--opset", "need opset 21"),
    ("--formula onnx --type int8 --opset 99", "--opset", "opset is 99"),
    ("--formula onnx --type int8 --ensure-minimum-range -1", "--ensure-minimum-range", "at least 0"),
    ("--formula onnx --type int8 --dequantize --scale 1", "x.npy", "no codes of int8"),
    ("--formula onnx --type int8 -o x.npy --force", "x.npy", "read by this run"),
    ("--formula onnx --type int8 -o no/q.npy", "no/q.npy", "does not exist"),
    ("--formula onnx --type int8 --scale none.npy", "none.npy", "No such file"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "where", "words"), REFUSALS, ids=[line for line, _, _ in REFUSALS])
def test_refusals_name_the_option_and_write_nothing(
    capsys: pytest.CaptureFixture[str], line: str, where: str, words: str
) -> None:
    np.save("x.npy", normal(3, 4))
    before = Path("x.npy").read_bytes()
    found = call(capsys, f"x.npy {line}", code=2)
    error = found["errors"][0]
    assert (found["command"], found["status"], error["where"]) == ("tensor", "refused", where)
    assert words in error["what"]
    assert [path.name for path in Path().iterdir()] == ["x.npy"]
    assert Path("x.npy").read_bytes() == before


def test_going_back_needs_what_the_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("q.npy", np.array([1, 2, 9], np.int8))
    line = "q.npy -o y.npy --dequantize --formula"
    assert call(capsys, f"{line} onnx --type int8", code=2)["errors"][0]["where"] == "--scale"
    assert call(capsys, f"{line} tf-scaled --type qint8", code=2)["errors"][0]["where"] == "--range"
    assert "no codes of int4" in call(capsys, f"{line} onnx --type int4 --scale 1", code=2)["errors"][0]["what"]
    call(capsys, f"{line} onnx --type int8 --range 0:255")
    assert np.load("y.npy").tolist() == [129, 130, 137]


def test_a_range_of_nothing_is_defined_by_onnx_and_not_by_tensorflow(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.zeros(4, np.float32))
    assert call(capsys, "x.npy --formula onnx --type int8")["scale"] == 1
    error = call(capsys, "x.npy --formula tf-scaled --type qint8", code=2)["errors"][0]
    assert error["code"] == "empty-range"
    call(capsys, "x.npy --formula tf-scaled --type qint8 --ensure-minimum-range 0.01")


def test_files_that_are_no_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.npy").write_text("text")
    Path("x.txt").write_text("text")
    line = "--formula onnx --type int8"
    assert call(capsys, f"x.npy {line}", code=2)["errors"][0]["code"] == "data-unreadable"
    assert call(capsys, f"x.txt {line}", code=2)["errors"][0]["code"] == "no-npy-file"
    np.save("x.npy", np.array(["a"]))
    assert call(capsys, f"x.npy {line}", code=2)["errors"][0]["code"] == "formula-refuses"


def test_an_existing_output_needs_force(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", normal(3))
    Path("q.npy").write_text("mine")
    assert call(capsys, "x.npy -o q.npy --formula onnx --type int8", code=2)["errors"][0]["code"] == "output-exists"
    assert Path("q.npy").read_text() == "mine"
    found = call(capsys, "x.npy -o q.npy --formula onnx --type int8 --force")
    assert found["output"]["size_bytes"] == Path("q.npy").stat().st_size
    assert found["stored_as"] == "int8"


def test_a_scale_that_float16_cannot_hold(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([1e-6, 0], np.float16))
    assert call(capsys, "x.npy --formula onnx --type int16", code=2)["errors"][0]["code"] == "scale-not-representable"


def test_int32_and_half_precision_at_the_opsets_that_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([1, -7], np.int32))
    line = "x.npy --formula onnx --type int8 --opset"
    assert call(capsys, f"{line} 13")["opset"] == 13
    assert call(capsys, f"{line} 21", code=2)["errors"][0]["code"] == "opset-without-form"
    np.save("x.npy", np.array([1, -7], np.float16))
    assert call(capsys, f"{line} 13", code=2)["errors"][0]["code"] == "opset-too-old"
    assert call(capsys, f"{line} 19")["opset"] == 19


def test_bfloat16_and_codes_saved_by_numpy_itself(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("q.npy", np.array([1, -8, 7], ml_dtypes.int4))
    call(capsys, "q.npy -o y.npy --formula onnx --type int4 --scale 0.5 --dequantize")
    assert np.load("y.npy").tolist() == [0.5, -4, 3.5]
    np.save("q.npy", np.array([1.5, -6], ml_dtypes.float4_e2m1fn))
    call(capsys, "q.npy -o y.npy --force --formula onnx --type float4_e2m1fn --scale 2 --dequantize")
    assert np.load("y.npy").tolist() == [3, -12]
