"""Four and eight bits of weights alone on a trained sentence encoder: do real sentences keep their embedding?

``python -m tests.real.test_weight_only`` prints the table of the README.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

import quantool
from tests.real import measure
from tests.real.models import minilm

pytestmark = pytest.mark.real

#: what each row of the table forces at every node; none: what samples choose
ALGORITHMS: dict[str, list[str] | None] = {
    "round to nearest": [],
    "mse-clip": ["mse-clip"],
    "k-quant": ["k-quant"],
    "hqq": ["hqq"],
    "awq": ["awq", "k-quant"],
    "gptq": ["gptq", "k-quant"],
    "chosen": None,
}
TABLES_IN_INT8 = {"op_type": "Gather", "weights": "int8"}
#: each column of the table: type, granularity, rules
FORMS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "int8 a channel": ("int8", "channel", []),
    "int4 block:32": ("int4", "block:32", []),
    "int4 block:32, tables int8": ("int4", "block:32", [TABLES_IN_INT8]),
    "uint4 block:32": ("uint4", "block:32", []),
}


def cosine(form: str, names: list[str] | None, **options: Any) -> float:
    """The mean cosine of the embeddings of sentences that did not calibrate to those of the float model."""
    model, (weights, granularity, rules) = minilm.build(), FORMS[form]
    forced = [] if names is None else [{"scope": "*", "algorithms": names}]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quantized.onnx"
        quantool.quantize(
            str(model.path),
            data=list(model.calib()),
            output=str(output),
            mode="weight-only",
            weights=weights,
            granularity=granularity,
            rules=[*rules, *forced],
            **options,
        )
        return model.evaluate(measure.runner(output))


@pytest.mark.parametrize(
    ("form", "names", "least"),
    [
        ("int8 a channel", None, 0.999),
        ("int8 a channel", ["gptq"], 0.999),
        ("int4 block:32, tables int8", ["gptq", "k-quant"], 0.99),
        ("int4 block:32, tables int8", None, 0.99),
        ("uint4 block:32", None, 0.99),
    ],
)
def test_sentences_keep_their_embedding(form: str, names: list[str] | None, least: float) -> None:
    assert cosine(form, names) >= least


def test_samples_and_searches_gain_over_rounding_to_nearest() -> None:
    found = {name: cosine("int4 block:32", ALGORITHMS[name]) for name in ("round to nearest", "k-quant", "gptq")}
    assert found["round to nearest"] < found["k-quant"] < found["gptq"]


def main() -> None:
    """Print the cosines as a table in Markdown."""
    print("|  |", " | ".join(FORMS), "|")
    print("| --- |" + " --- |" * len(FORMS))
    for name, names in ALGORITHMS.items():
        print(f"| {name} |", " | ".join(f"{cosine(form, names):.4f}" for form in FORMS), "|", flush=True)


if __name__ == "__main__":
    main()
