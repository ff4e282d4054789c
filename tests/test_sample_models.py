"""The shipped sample models are what their README says."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

FOLDER = Path(__file__).parents[1] / "sample_models"
DIGITS = ("digits_mlp", "digits_cnn", "digits_depthwise", "digits_transformer")
NAMES = (*DIGITS, "chargpt")
# Another order of summation moves a result by at most K roundings of float32 a layer; the longest sum here has
# K = 432 products (a 3x3 Conv over 48 channels), the deepest model 16 weighted layers in a row.
SUM_ORDER = 16 * 432 * 2.0**-24
OPERATORS = {
    "digits_mlp": {"Gemm": 3, "Relu": 2},
    "digits_cnn": {"Conv": 8, "BatchNormalization": 8, "Add": 3, "MaxPool": 1, "GlobalAveragePool": 1},
    "digits_depthwise": {"Conv": 12, "BatchNormalization": 12, "Clip": 10, "Add": 2, "GlobalAveragePool": 1},
    "digits_transformer": {"MatMul": 17, "Softmax": 2, "LayerNormalization": 5, "Erf": 2},
    "chargpt": {"MatMul": 13, "Softmax": 2, "Sqrt": 5, "ReduceMean": 10, "Erf": 2, "Split": 2},
}


def readme_table() -> dict[str, dict[str, str]]:
    """Return the rows of the README's table by model."""
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, _, *body = rows
    return {row[0]: dict(zip(head, row, strict=True)) for row in body}


def load(name: str) -> onnx.ModelProto:
    return onnx.load(FOLDER / f"{name}.onnx")


def open_session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(FOLDER / f"{name}.onnx", options, providers=["CPUExecutionProvider"])


def read_arrays(name: str, part: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.{part}.npz") as archive:
        return dict(archive)


def evaluate(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the model's first output on its evaluation set, and the labels."""
    arrays = read_arrays(name, "eval")
    labels = arrays.pop("labels")
    return open_session(name).run(None, arrays)[0], labels


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(scores.argmax(1) == labels))


def perplexity(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    picked = np.take_along_axis(shifted, labels[..., None], -1)[..., 0]
    return float(np.exp(np.mean(np.log(np.exp(shifted).sum(-1)) - picked)))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "perplexity": perplexity,
}


def test_the_readme_lists_every_model_and_nothing_else() -> None:
    # the command of the project's README writes NAME.int8.onnx beside the model
    shipped = {path.stem for path in FOLDER.glob("*.onnx") if not path.stem.endswith(".int8")}
    assert set(readme_table()) == shipped == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_float_figure_is_the_one_in_the_readme(name: str) -> None:
    row = readme_table()[name]
    measured = METRICS[row["metric"]](*evaluate(name))
    digits = len(row["float"].partition(".")[2])
    # half a unit of the last printed digit, and as much again for float32 sums in another processor's order
    assert measured == pytest.approx(float(row["float"]), rel=0, abs=10.0**-digits)


@pytest.mark.parametrize("name", NAMES)
def test_the_other_columns_of_the_readme_are_true(name: str) -> None:
    row, model = readme_table()[name], load(name)
    ports = [
        f"{port.name} [{','.join(d.dim_param or str(d.dim_value) for d in port.type.tensor_type.shape.dim)}]"
        for port in (*model.graph.input, *model.graph.output)
    ]
    assert [row["input"], row["output"]] == ports
    assert int(row["opset"]) == model.opset_import[0].version
    assert int(row["size in bytes"]) == (FOLDER / f"{name}.onnx").stat().st_size
    assert int(row["evaluation samples"]) == len(read_arrays(name, "eval")["labels"])


@pytest.mark.parametrize("name", NAMES)
def test_the_model_passes_the_checker(name: str) -> None:
    onnx.checker.check_model(load(name), full_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_operators_are_those_of_the_architecture(name: str) -> None:
    found = Counter(node.op_type for node in load(name).graph.node)
    assert {op: found[op] for op in OPERATORS[name]} == OPERATORS[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_file_keeps_its_size_limit(name: str) -> None:
    limit = 1_000_000 if name == "chargpt" else 500_000
    files = [FOLDER / f"{name}{suffix}" for suffix in (".onnx", ".calib.npz", ".eval.npz")]
    assert [path.name for path in files if path.stat().st_size >= limit] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_arrays_have_the_types_and_shapes_of_the_input(name: str) -> None:
    (port,) = open_session(name).get_inputs()
    calibration, evaluation = read_arrays(name, "calib"), read_arrays(name, "eval")
    assert set(calibration) == {port.name}
    assert set(evaluation) == {port.name, "labels"}
    for array in (calibration[port.name], evaluation[port.name]):
        assert {"float32": "tensor(float)", "int64": "tensor(int64)"}[str(array.dtype)] == port.type
        fixed = [(n, d) for n, d in zip(array.shape, port.shape, strict=True) if isinstance(d, int)]
        assert all(n == d for n, d in fixed)
    assert evaluation["labels"].dtype == np.int64


@pytest.mark.parametrize("name", NAMES)
def test_there_are_enough_samples(name: str) -> None:
    (port,) = open_session(name).get_inputs()
    assert len(read_arrays(name, "calib")[port.name]) >= 128
    assert len(read_arrays(name, "eval")[port.name]) >= 500


@pytest.mark.parametrize("name", NAMES)
def test_no_sample_is_in_both_sets_or_twice_in_one(name: str) -> None:
    (port,) = open_session(name).get_inputs()
    rows = [*read_arrays(name, "calib")[port.name], *read_arrays(name, "eval")[port.name]]
    assert len({hashlib.sha256(row.tobytes()).digest() for row in rows}) == len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_gives_the_same_alone_and_in_a_batch(name: str) -> None:
    session = open_session(name)
    (port,) = session.get_inputs()
    rows = read_arrays(name, "calib")[port.name][:5]
    together = session.run(None, {port.name: rows})[0]
    alone = np.concatenate([session.run(None, {port.name: rows[i : i + 1]})[0] for i in range(len(rows))])
    np.testing.assert_allclose(alone, together, rtol=0, atol=SUM_ORDER * np.abs(together).max())


@pytest.mark.parametrize("name", DIGITS)
def test_digit_scores_are_ten_and_every_digit_is_evaluated(name: str) -> None:
    scores, labels = evaluate(name)
    assert scores.shape == (len(labels), 10)
    assert np.bincount(labels, minlength=10).min() >= 60
    assert accuracy(scores, labels) >= 0.97


@pytest.mark.parametrize("name", DIGITS)
def test_images_are_8_bit_grey_levels_from_0_to_1(name: str) -> None:
    (port,) = open_session(name).get_inputs()
    for part in ("calib", "eval"):
        images = read_arrays(name, part)[port.name]
        levels = np.rint(images * 255)
        assert (levels.min(), levels.max()) == (0, 255)
        np.testing.assert_array_equal(images, (levels.astype(np.float64) / 255).astype(np.float32))


def test_the_calibration_sets_of_one_size_are_the_same_images() -> None:
    cnn, depthwise = (read_arrays(name, "calib")["image"] for name in ("digits_cnn", "digits_depthwise"))
    np.testing.assert_array_equal(cnn, depthwise)


def test_batch_norm_statistics_are_those_of_trained_layers() -> None:
    for name in ("digits_cnn", "digits_depthwise"):
        graph = load(name).graph
        weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
        for node in (n for n in graph.node if n.op_type == "BatchNormalization"):
            mean, variance = (weights[name] for name in node.input[3:])
            assert np.all(np.isfinite(mean) & (mean != 0))
            assert np.all(np.isfinite(variance) & (variance > 0) & (variance != 1))


def test_the_relu6_bounds_are_0_and_6() -> None:
    graph = load("digits_depthwise").graph
    constants = {
        n.output[0]: float(numpy_helper.to_array(n.attribute[0].t)) for n in graph.node if n.op_type == "Constant"
    }
    bounds = [tuple(constants[i] for i in n.input[1:]) for n in graph.node if n.op_type == "Clip"]
    assert set(bounds) == {(0.0, 6.0)}


def test_chargpt_labels_are_the_next_characters() -> None:
    arrays = read_arrays("chargpt", "eval")
    np.testing.assert_array_equal(arrays["labels"][:, :-1], arrays["ids"][:, 1:])


def test_chargpt_does_not_look_ahead() -> None:
    session = open_session("chargpt")
    ids = read_arrays("chargpt", "eval")["ids"][:4]
    changed = ids.copy()
    changed[:, 40:] = (changed[:, 40:] + 1) % 92
    before, after = (session.run(None, {"ids": rows})[0] for rows in (ids, changed))
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert np.any(before[:, 40:] != after[:, 40:])


def test_chargpt_runs_on_a_shorter_sequence() -> None:
    session = open_session("chargpt")
    ids = read_arrays("chargpt", "eval")["ids"][:2]
    whole, start = (session.run(None, {"ids": rows})[0] for rows in (ids, ids[:, :7]))
    assert start.shape == (2, 7, 92)
    np.testing.assert_allclose(start, whole[:, :7], rtol=0, atol=SUM_ORDER * np.abs(whole).max())


def test_chargpt_masks_with_minus_1e9_and_names_its_characters() -> None:
    model = load("chargpt")
    (mask,) = (numpy_helper.to_array(w) for w in model.graph.initializer if w.name == "mask")
    np.testing.assert_array_equal(mask[0, 0], np.triu(np.full((64, 64), -1e9, np.float32), 1))
    (characters,) = (json.loads(p.value) for p in model.metadata_props if p.key == "characters")
    assert len(set(characters)) == len(characters) == 92
    ids = read_arrays("chargpt", "eval")["ids"]
    assert re.search(r"\bthe\b", "".join(characters[i] for i in ids.ravel()))
