"""The generator of decoders writes models that run, with the cache they promise, the same bytes for a seed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from quantool.metrics import Sample, find
from sample_models.decoder import DecoderConfig, RandomWeights, random_ids, write_decoder
from sample_models.decoder.__main__ import parse_size

FOLDER = Path(__file__).parents[1] / "sample_models"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
TRAINED = DecoderConfig(hidden=128, intermediate=352, vocabulary=512, tied=True)
PRECISIONS = {"fp32": np.float32, "fp16": np.float16}
CONFIGS = [
    DecoderConfig(cache="none", attention_mask=False, position_ids=False),
    DecoderConfig(cache="with-past", tied=True),
    DecoderConfig(cache="with-past", precision="fp16", position_ids=False),
    DecoderConfig(cache="merged", precision="bf16", cast_weights=True, kv_heads=4),
    DecoderConfig(cache="merged", precision="fp16", cast_weights=True, tied=True, attention_mask=False),
]


def write(folder: Path, config: DecoderConfig, *, seed: int = 0, files: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    return write_decoder(folder / "model.onnx", config, RandomWeights(config, seed), files=files)


def feed(
    session: onnxruntime.InferenceSession, config: DecoderConfig, ids: np.ndarray, past: list[np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Return what the model takes for ids [1, tokens] after `past`, the model's own present outputs."""
    seen = past[0].shape[2] if past else 0
    empty = np.zeros((1, config.kv_heads, 0, config.head_size), PRECISIONS[config.compute])
    values = {
        "input_ids": ids,
        "attention_mask": np.ones((1, seen + ids.shape[1]), np.int64),
        "position_ids": np.arange(seen, seen + ids.shape[1])[None],
        "use_cache_branch": np.array([past is not None]),
    }
    cache = [port.name for port in session.get_inputs() if port.name.startswith("past_key_values")]
    values |= dict(zip(cache, past or [empty] * len(cache), strict=True))
    return {port.name: values[port.name] for port in session.get_inputs()}


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_model_passes_the_checker_and_its_logits_differ_by_token(tmp_path: Path, config: DecoderConfig) -> None:
    path = write(tmp_path, config)
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path)
    logits = session.run(None, feed(session, config, random_ids(config, 1, 12)))[0]
    assert logits.shape == (1, 12, config.vocabulary)
    assert logits.dtype == PRECISIONS[config.compute]
    assert np.isfinite(logits).all()
    assert np.std(logits, axis=1).mean() > 0.1


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.cache != "none"], ids=str)
def test_decoding_with_the_cache_gives_the_logits_of_the_whole_sequence(tmp_path: Path, config: DecoderConfig) -> None:
    session = onnxruntime.InferenceSession(write(tmp_path, config))
    ids = random_ids(config, 1, 12)
    whole = session.run(None, feed(session, config, ids))[0]
    prompt = session.run(None, feed(session, config, ids[:, :8]))
    rest = session.run(None, feed(session, config, ids[:, 8:], prompt[1:]))[0]
    tolerance = {"fp32": 1e-4, "fp16": 5e-2}[config.compute] * np.abs(whole).max()
    np.testing.assert_allclose(rest, whole[:, 8:], rtol=0, atol=tolerance)


def test_no_token_sees_the_next_ones(tmp_path: Path) -> None:
    config = CONFIGS[1]
    session = onnxruntime.InferenceSession(write(tmp_path, config))
    ids = random_ids(config, 1, 12)
    changed = ids.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % config.vocabulary
    before, after = (session.run(None, feed(session, config, rows))[0] for rows in (ids, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.any(before[:, 7:] != after[:, 7:])


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    config = CONFIGS[1]
    paths = [write(tmp_path / str(index), config, seed=seed) for index, seed in enumerate((3, 3, 4))]
    data = [path.with_name("model.onnx_data").read_bytes() for path in paths]
    assert data[0] == data[1] != data[2]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("files", [0, 1, 3])
def test_weights_stand_in_as_many_files_as_asked_and_are_the_same(tmp_path: Path, files: int) -> None:
    config = replace(CONFIGS[1], layers=3)
    path = write(tmp_path / "asked", config, files=files)
    data = sorted(file.name for file in path.parent.iterdir() if file != path)
    assert data == ["model.onnx_data", "model.onnx_data_1", "model.onnx_data_2"][:files]
    inline = onnx.load(write(tmp_path / "inline", config, files=0))
    for one, other in zip(onnx.load(path).graph.initializer, inline.graph.initializer, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(one), onnx.numpy_helper.to_array(other))


def test_weights_have_heavy_tails_and_the_norms_outlier_channels() -> None:
    config = DecoderConfig(hidden=512, intermediate=1024)
    weights = RandomWeights(config)
    shapes = config.weight_shapes()
    name = "model.layers.0.mlp.up_proj.weight"
    values = np.concatenate([*weights(name, shapes[name])]).astype(np.float64)
    standard = values / values.std(axis=0)
    assert 2 < np.mean(standard**4) - 3 < 12
    gains = [next(weights(name, shape)) for name, shape in shapes.items() if len(shape) == 1]
    large = [set(np.flatnonzero(gain > 4).tolist()) for gain in gains]
    assert large[0]
    assert all(channels == large[0] for channels in large)


def test_of_size_comes_within_half_a_layer() -> None:
    config = DecoderConfig(hidden=256, intermediate=512, vocabulary=1000, precision="fp16")
    layer = replace(config, layers=2).size - replace(config, layers=1).size
    assert abs(config.of_size(parse_size("64M")).size - (64 << 20)) <= layer / 2
    assert parse_size("1.5G") == 3 << 29


def trained_rows(part: str) -> np.ndarray:
    lines = (FOLDER / f"pydoc_decoder/{part}.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["input_ids"] for line in lines])


def test_the_trained_decoder_has_the_perplexity_of_the_readme() -> None:
    session = onnxruntime.InferenceSession(FOLDER / "pydoc_decoder/model.onnx")
    metric = find("perplexity")
    parts = []
    for row in trained_rows("eval"):
        given = feed(session, TRAINED, row[None])
        outputs = dict(zip([port.name for port in session.get_outputs()], session.run(None, given), strict=True))
        parts.append(metric.parts(Sample(feed=given, labels={}, outputs=outputs, reference=outputs)))
    (said,) = re.findall(r"perplexity on `eval.jsonl` is ([\d.]+)", README)
    assert float(metric.value(np.concatenate(parts).sum(0))) == pytest.approx(float(said), abs=2e-3)


def test_the_trained_decoder_is_what_the_readme_says() -> None:
    path = FOLDER / "pydoc_decoder/model.onnx"
    assert f"{path.stat().st_size:,} bytes" in README
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    (pieces,) = (json.loads(entry.value) for entry in model.metadata_props if entry.key == "pieces")
    assert len(pieces) == 512 - 256
    calibration, evaluation = trained_rows("calib"), trained_rows("eval")
    assert calibration.shape == evaluation.shape == (64, 96)
    rows = {tuple(row) for row in (*calibration.tolist(), *evaluation.tolist())}
    assert len(rows) == 128


def test_the_evaluation_text_reads_as_the_documentation() -> None:
    model = onnx.load(FOLDER / "pydoc_decoder/model.onnx")
    (pairs,) = (json.loads(entry.value) for entry in model.metadata_props if entry.key == "pieces")
    words = [bytes([value]) for value in range(256)]
    for first, second in pairs:
        words.append(words[first] + words[second])
    text = b" ".join(b"".join(words[piece] for piece in row) for row in trained_rows("eval")).decode(errors="replace")
    assert len(re.findall(r"\bthe\b", text)) > 50
