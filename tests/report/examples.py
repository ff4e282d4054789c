"""Reports as a pipeline would make them, for the tests of every rendering."""

from __future__ import annotations

from dataclasses import replace

from quantool.errors import GateError
from quantool.measured import Latency, OutputComparison
from quantool.recipe import from_options
from quantool.report.detail import Environment, FixRow, Histogram, LayerRow, LayersInfo
from quantool.report.model import (
    Coverage,
    DataInfo,
    Gate,
    LatencyInfo,
    ModelInfo,
    NodeRow,
    OutputInfo,
    Report,
    RuntimeInfo,
    TensorRow,
    Verification,
)
from quantool.schema import Note, Reason

SOFTMAX = Reason(code="softmax", text="Softmax amplifies small errors.", fix="Ask for it with --include-op Softmax.")
NASTY = '<script>alert("x")</script>|[bold]\x1b[31m`a`\n&amp;'
"""A name with HTML, XML, Markdown, rich markup, a terminal escape and a line break in it."""


def comparison(**changed: object) -> OutputComparison:
    """One output at 34.2 dB."""
    base = OutputComparison(
        sqnr_db=34.2,
        worst_channel_sqnr_db=30.1,
        cosine=0.99981,
        max_abs_error=0.0213,
        top1_agreement=0.998,
        exact=False,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


def report(name: str = "digits") -> Report:
    """A run that went well; `name` is put wherever a model can put a name."""
    return Report(
        command="quantize",
        model=ModelInfo(path=f"{name}.onnx", sha256="ab" * 32, opset=13, size_bytes=412_345),
        output=OutputInfo(path=f"{name}.int8.onnx", sha256="cd" * 32, size_bytes=110_200),
        recipe=from_options({"mode": "static", "exclude": [f"{name}/x"]}).to_dict(),
        data=DataInfo(source=f"{name}.calib.npz beside the model", samples=128, held_out=True),
        nodes=(
            NodeRow(name=f"{name}/conv", op_type="Conv", scope="", decision="quantized", runs_as="integer"),
            NodeRow(
                name=f"{name}/relu", op_type="Relu", scope="", decision="quantized", into=f"{name}/conv",
                runs_as="integer",
            ),
            NodeRow(
                name=f"{name}/softmax", op_type="Softmax", scope="if_1/then_branch", decision="kept",
                runs_as="float", reason=SOFTMAX,
            ),
        ),
        tensors=(
            TensorRow(
                name=f"{name}/x", dtype="uint8", scale=0.0235, zero_point=128, range=(-3.0, 3.0), observed_min=-3.1,
                observed_max=3.4, clipped_share=0.0004, sqnr_db=41.5, calibrator="mse",
                histogram=Histogram(low=-3.1, high=3.4, counts=(3, 40, 900, 1200, 30, 2), below=0, above=1),
            ),
            TensorRow(name=f"{name}/w", dtype="int8", scale=(0.01, 0.02), zero_point=(0, 0)),
        ),
        coverage=Coverage(nodes=2 / 3, macs=0.9999, weight_bytes=1.0),
        verification=Verification(samples=16, outputs={f"{name}/logits": comparison()}),
        runtime=RuntimeInfo(fused={"QLinearConv": 12, "QGemm": 1}, left={"QuantizeLinear": 1, "DequantizeLinear": 1}),
        latency=LatencyInfo.of(Latency(float_ms=1.23, quantized_ms=0.61)),
        verdict="Worth it: 3.7 times smaller and 2.0 times as fast as float at 34.2 dB.",
        warnings=(Note(code="outlier", what=f"{name}/x has 1 outlier", where=f"{name}/x", fix="Look at the data."),),
        layers=LayersInfo(
            samples=4, candidates=3, measured=2,
            rows=(
                LayerRow(
                    node=f"{name}/conv", op_type="Conv", tensor=f"{name}/c", sqnr_db=41.0, exact=False,
                    input_sqnr_db=None, runs_as="integer",
                ),
                LayerRow(
                    node=f"{name}/softmax", op_type="Softmax", tensor=f"{name}/s", sqnr_db=29.5, exact=False,
                    input_sqnr_db=41.0, runs_as="float",
                ),
            ),
        ),
        fixes=(FixRow(nodes=(f"{name}/conv",), operators=("Conv",), gain_db=2.5, macs_share=0.02),),
        environment=Environment(
            versions={"quantool": "0.1.0", "onnx": "1.0"}, python="3.11.7", system="Linux 6.1", machine="x86_64",
            cpu="A Processor", cpus=2, threads=0,
        ),
        command_line=f"quantool quantize '{name}.onnx' --report r.html",
    )  # fmt: skip


def gate_failed(name: str = "digits") -> Report:
    """The same run with a gate that does not hold."""
    gates = (
        Gate(name="min_sqnr", limit=40.0, value=34.2, passed=False),
        Gate(name="max_size_ratio", limit=0.5, value=0.267, passed=True),
    )
    run = replace(report(name), output=None, gates=gates)
    error = GateError(
        "gate-failed", "min-sqnr is 34.2 dB, below 40 dB", where="--min-sqnr", fix="Lower it.", report=run
    )
    return Report.failed("quantize", error)
