"""A pipeline that answers at once and remembers what it was asked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from report.examples import report

from quantool.report.model import ModelInfo, Report
from quantool.requests import Inspection, TensorInfo

INSPECTION = Inspection(
    model=ModelInfo(path="m.onnx", sha256="0", opset=17, size_bytes=1234),
    inputs=(TensorInfo(name="x", dtype="float32", shape=("N", 3)),),
    outputs=(TensorInfo(name="y", dtype="float32", shape=None),),
    operators={"Conv": 2},
    parameters=12,
    parameter_bytes=48,
    quantizable_nodes=1,
    quantizable_share=0.5,
    data_beside="m.calib.npz",
)


class FakePipeline(ModuleType):
    """Stands for quantool.pipeline; set `error` to make it fail, `answer` to change its report."""

    def __init__(self) -> None:
        super().__init__("quantool.pipeline")
        self.asked: list[Any] = []
        self.error: BaseException | None = None
        self.answer: Report = report()

    def _answer(self, request: object, command: str) -> Report:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return replace(self.answer, command=command)

    def quantize(self, request: object) -> object:
        answer = self._answer(request, "quantize")
        return SimpleNamespace(model="proto", output=None, report=answer)

    def calibrate(self, request: object) -> object:
        return SimpleNamespace(stats="stats", report=self._answer(request, "calibrate"))

    def compare(self, request: object) -> Report:
        return self._answer(request, "compare")

    def explain(self, request: object) -> Report:
        return self._answer(request, "explain")

    def inspect(self, request: object) -> Inspection:
        self._answer(request, "inspect")
        return INSPECTION
