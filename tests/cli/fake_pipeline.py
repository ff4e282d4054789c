"""A pipeline that answers at once and remembers what it was asked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from report.examples import report

from quantool.recipe import from_options
from quantool.report.model import DataInfo, ModelInfo, OutputInfo, Report
from quantool.report.sensitivity import GroupNoise, Sensitivity
from quantool.requests import Inspection, RecipeView, TensorInfo, TensorResult

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

SENSITIVITY = Sensitivity(
    model=ModelInfo(path="m.onnx"),
    data=DataInfo(source="d.npz", samples=24, held_out=True),
    score_db=20.0,
    kept_score_db=35.0,
    exclude=("a",),
    runs=12,
    groups=tuple(
        GroupNoise(
            name=name, operators=("Conv",), nodes=(name,), sqnr_db=20.0, noise_share=0.5, macs_share=0.5,
            kept=name == "a",
        )
        for name in "ab"
    ),
)  # fmt: skip

TENSOR = TensorResult(
    formula="onnx",
    dtype="int8",
    input_path="w.npy",
    input_dtype="float32",
    shape=(2, 3),
    output=None,
    stored_as="int8",
    scale=0.5,
    scale_factor=2.0,
    zero_point=1,
    residual_shift=0.0,
    range=(-1.0, 1.0),
    reach=(-1.0, 1.0),
    sqnr_db=40.0,
    exact=False,
    clipped_share=0.0,
    opset=23,
    feature_level=None,
    expanded_bytes=None,
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

    def tune(self, request: object) -> object:
        return SimpleNamespace(model="proto", output=None, report=self._answer(request, "tune"))

    def calibrate(self, request: object) -> object:
        return SimpleNamespace(stats="stats", report=self._answer(request, "calibrate"))

    def merge(self, request: object) -> object:
        return SimpleNamespace(stats="stats", report=self._answer(request, "merge"))

    def compare(self, request: object) -> Report:
        return self._answer(request, "compare")

    def check(self, request: object) -> Report:
        return self._answer(request, "check")

    def explain(self, request: object) -> Report:
        return self._answer(request, "explain")

    def inspect(self, request: object) -> Inspection:
        self._answer(request, "inspect")
        return INSPECTION

    def show_recipe(self, request: Any) -> RecipeView:
        self._answer(request, "recipe show")
        return RecipeView(recipe=request.recipe, reach=None)

    def check_recipe(self, request: Any) -> RecipeView:
        self._answer(request, "recipe check")
        return RecipeView(recipe=from_options({}), reach=None)

    def export_recipe(self, request: Any) -> OutputInfo:
        self._answer(request, "recipe export")
        return OutputInfo(path=str(request.output), sha256="0", size_bytes=1)

    def sensitivity(self, request: object) -> Sensitivity:
        self._answer(request, "sensitivity")
        return SENSITIVITY

    def tensor(self, request: object) -> TensorResult:
        self._answer(request, "tensor")
        return TENSOR
