"""Decoder models of every variant through every mode: they run, stay close to float, and share their weights."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import quantool
from quantool.errors import DataError, NothingQuantizedError
from quantool.kernels.metrics import cosine
from quantool.pipeline.decoding import DECODED
from sample_models.decoder import DecoderConfig, RandomWeights, random_ids, write_decoder

TRAINED = Path(__file__).parents[2] / "sample_models/pydoc_decoder"
VARIANTS = {
    "plain": DecoderConfig(cache="none"),
    "past, tied": DecoderConfig(cache="with-past", tied=True),
    "past, float16": DecoderConfig(cache="with-past", precision="fp16", position_ids=False),
    "past, bfloat16 weights": DecoderConfig(cache="with-past", precision="bf16", cast_weights=True),
    "merged, tied": DecoderConfig(cache="merged", tied=True),
    "merged, float16 weights": DecoderConfig(cache="merged", precision="fp16", cast_weights=True),
}
FORMS = {
    "int8": {"mode": "weight-only"},
    "int4": {"mode": "weight-only", "weights": "int4"},
    "dynamic": {"mode": "dynamic"},
    "static": {"mode": "static"},
}
#: int8 codes of random weights with outlier channels; of 4 bits little more than the sign of the largest logits is left
LEAST_SQNR = {"int8": 14.0, "int4": 3.0, "dynamic": 11.0, "static": 3.0}
PRODUCTS = 2 * 7 + 1


def tokens(folder: Path, config: DecoderConfig, rows: int = 16) -> str:
    path = folder / "tokens.jsonl"
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in random_ids(config, rows, 24).tolist()))
    return str(path)


def model(folder: Path, config: DecoderConfig, files: int = 2) -> Path:
    return write_decoder(folder / "model.onnx", config, RandomWeights(config), files=files)


#: the cases that run by default; the others are the long form
BRIEF = {
    "plain": ("static",),
    "past, tied": ("int8", "int4", "dynamic", "static"),
    "past, float16": ("int4",),
    "past, bfloat16 weights": ("int8",),
    "merged, tied": ("int8", "dynamic"),
    "merged, float16 weights": ("int4",),
}
CASES = [
    pytest.param(variant, form, marks=() if form in BRIEF[variant] else pytest.mark.full)
    for variant in VARIANTS
    for form in FORMS
    if not (form == "static" and "merged" in variant)
]


@pytest.mark.parametrize(("variant", "form"), CASES)
def test_every_variant_is_quantized_and_stays_near_float(tmp_path: Path, variant: str, form: str) -> None:
    config = VARIANTS[variant]
    data = tokens(tmp_path, config)
    result = quantool.quantize(model(tmp_path, config), data=data, output=tmp_path / "out.onnx", **FORMS[form])
    report = result.report
    done = Counter((row.op_type, bool(row.scope)) for row in report.nodes if row.decision == "quantized")
    merged = config.cache == "merged"
    assert done["MatMul", merged] == PRODUCTS * (2 if merged else 1)
    assert report.verification is not None
    outputs = report.verification.outputs
    assert (DECODED in outputs) == (config.cache != "none")
    for name in ("logits", DECODED):
        if name in outputs:
            assert outputs[name].sqnr_db is not None
            assert outputs[name].sqnr_db > LEAST_SQNR[form]
    assert (outputs["logits"].perplexity is not None) == (config.cache != "none")


def feed(
    session: onnxruntime.InferenceSession, ids: np.ndarray, past: list[np.ndarray] | None
) -> dict[str, np.ndarray]:
    ports = session.get_inputs()
    caches = [port for port in ports if port.name.startswith("past")]
    seen = past[0].shape[2] if past else 0
    values = {
        "input_ids": ids,
        "attention_mask": np.ones((1, seen + ids.shape[1]), np.int64),
        "position_ids": np.arange(seen, seen + ids.shape[1])[None],
        "use_cache_branch": np.array([past is not None]),
    }
    for index, port in enumerate(caches):
        empty = np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32)
        values[port.name] = empty if past is None else past[index]
    return {port.name: values[port.name] for port in ports}


@pytest.mark.parametrize("form", ["int8", "int4", "dynamic"])
def test_both_branches_of_a_merged_model_run_and_share_their_codes(tmp_path: Path, form: str) -> None:
    config = VARIANTS["merged, tied"]
    path = tmp_path / "out.onnx"
    found = quantool.quantize(model(tmp_path, config), data=tokens(tmp_path, config), output=path, **FORMS[form])
    assert found.report.runtime is not None
    assert found.report.runtime.left == {"QuantizeLinear": 0, "DequantizeLinear": 0}  # none expands weights each run
    if form != "dynamic":
        assert found.report.runtime.fused["MatMulNBits"] == 2 * PRODUCTS
    session = onnxruntime.InferenceSession(path)
    ids = random_ids(config, 1, 12)
    whole = session.run(None, feed(session, ids, None))[0]
    prompt = session.run(None, feed(session, ids[:, :8], None))
    rest = session.run(None, feed(session, ids[:, 8:], prompt[1:]))[0]
    # codes of activations depend on how many tokens a run has: one scale a run in dynamic, other kernels beside int4
    assert cosine(rest, whole[:, 8:]) > {"int8": 1 - 1e-6}.get(form, 0.9)
    alone = tmp_path / "alone.onnx"
    plain = VARIANTS["past, tied"]
    quantool.quantize(model(tmp_path, plain), output=alone, no_verify=True, **FORMS[form])
    # one byte more of a weight than the model without branches would be a second copy
    assert weight_bytes(path) <= weight_bytes(alone)


def weight_bytes(path: Path) -> int:
    """Bytes of all initializers with more than a few entries, those of branches included."""
    pending, total = [onnx.load(path).graph], 0
    while pending:
        graph = pending.pop()
        total += sum(len(w.raw_data) for w in graph.initializer if np.prod(w.dims) > 16)
        pending += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return total


def test_static_ranges_cannot_be_measured_inside_branches_and_the_error_says_what_can(tmp_path: Path) -> None:
    config = VARIANTS["merged, tied"]
    with pytest.raises(NothingQuantizedError, match=r"in-subgraph.*Use --mode dynamic or weight-only"):
        quantool.quantize(model(tmp_path, config), data=tokens(tmp_path, config), mode="static")


def test_auto_takes_forms_without_ranges_where_all_products_stand_in_branches(tmp_path: Path) -> None:
    config = VARIANTS["merged, tied"]
    report = quantool.quantize(model(tmp_path, config), data=tokens(tmp_path, config)).report
    done = Counter(row.op_type for row in report.nodes if row.decision == "quantized")
    assert done["MatMul"] == 2 * PRODUCTS
    assert done["Gather"] == 2
    assert "not-calibrated" in [note.code for note in report.warnings]
    assert "give --data" not in (report.verdict or "")
    plain = VARIANTS["plain"]
    report = quantool.quantize(model(tmp_path, plain), data=tokens(tmp_path, plain)).report
    assert report.recipe is not None
    assert report.recipe["mode"] == "static"


@pytest.mark.parametrize(
    ("form", "limit", "most_kl"),
    [
        ("int8", 1.01, 0.005),
        ("int4", 1.1, 0.15),
        pytest.param("dynamic", 1.015, 0.02, marks=pytest.mark.full),
        pytest.param("static", 1.02, 0.02, marks=pytest.mark.full),
    ],
)
def test_a_trained_decoder_keeps_its_perplexity(form: str, limit: float, most_kl: float) -> None:
    options = {"data": str(TRAINED / "calib.jsonl"), "verify_data": str(TRAINED / "eval.jsonl"), "metric": "perplexity"}
    report = quantool.quantize(TRAINED / "model.onnx", threads=1, effort="fast", **options, **FORMS[form]).report
    assert report.verification is not None
    assert report.metric is not None
    logits = report.verification.outputs["logits"]
    assert logits.float_perplexity == pytest.approx(21.793, abs=2e-3)
    assert report.metric.float_value == pytest.approx(logits.float_perplexity)
    assert report.metric.quantized_value == pytest.approx(logits.perplexity)
    assert f"perplexity 21.79 to {logits.perplexity:.4g}" in (report.verdict or "")
    assert logits.perplexity is not None
    assert logits.kl is not None
    assert logits.perplexity < 21.793 * limit
    assert logits.kl < most_kl


def test_a_drop_of_perplexity_beyond_the_limit_fails_the_gate(tmp_path: Path) -> None:
    options = {"verify_data": str(TRAINED / "eval.jsonl"), "metric": "perplexity", "threads": 1, **FORMS["int4"]}
    with pytest.raises(quantool.GateError, match="max-drop") as caught:
        quantool.quantize(TRAINED / "model.onnx", max_drop=0.01, **options)
    assert caught.value.report is not None
    assert caught.value.report.metric is not None
    assert caught.value.report.metric.resolved
    assert caught.value.report.metric.drop is not None
    assert 0.01 < caught.value.report.metric.drop < 3


def test_compare_decodes_too(tmp_path: Path) -> None:
    quantool.quantize(TRAINED / "model.onnx", mode="weight-only", output=tmp_path / "out.onnx")
    report = quantool.compare(
        TRAINED / "model.onnx", tmp_path / "out.onnx", data=str(TRAINED / "eval.jsonl"), samples=4
    )
    assert report.verification is not None
    assert set(report.verification.outputs) >= {"logits", DECODED}


def test_a_cache_whose_sizes_are_symbols_is_refused_before_any_work(tmp_path: Path) -> None:
    config = VARIANTS["past, tied"]
    path = model(tmp_path, config, files=0)
    proto = onnx.load(path)
    for port in proto.graph.input:
        if port.name.startswith("past"):
            port.type.tensor_type.shape.dim[1].dim_param = "heads"
    onnx.save(proto, path)
    with pytest.raises(DataError, match=r"cache-unknown: .*past_key_values\.0\.key"):
        quantool.quantize(path, data=tokens(tmp_path, config), mode="weight-only")
