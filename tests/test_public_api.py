"""What `import quantool` offers, and that its functions ask the pipeline for what they were told."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report.examples import report

import quantool
from quantool.errors import GateError, OptionError, QuantoolError, RecipeError
from quantool.recipe import Recipe, from_options
from quantool.schema import Mode


class Pipeline:
    """Remembers the request; fails with `error` where there is one."""

    def __init__(self) -> None:
        self.request: Any = None
        self.error: QuantoolError | None = None

    def _answer(self, request: object) -> Any:
        self.request = request
        if self.error is not None:
            raise self.error
        return report()

    def quantize(self, request: object) -> object:
        return SimpleNamespace(model="proto", output=None, report=self._answer(request))

    def calibrate(self, request: object) -> object:
        return SimpleNamespace(stats="stats", report=self._answer(request))

    def merge(self, request: object) -> object:
        return SimpleNamespace(stats="stats", report=self._answer(request))

    def compare(self, request: object) -> object:
        return self._answer(request)

    def explain(self, request: object) -> object:
        return self._answer(request)

    def sensitivity(self, request: object) -> object:
        return self._answer(request)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pipeline:
    """A pipeline that answers at once, and an empty folder to work in."""
    fake = Pipeline()
    monkeypatch.setitem(sys.modules, "quantool.pipeline", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(quantool, "pipeline", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


# --- the names ------------------------------------------------------------------------------------------


def test_all_names_what_the_design_promises() -> None:
    functions = {"quantize", "calibrate", "check", "merge", "compare", "explain", "sensitivity", "tune"}
    errors = {
        "QuantoolError", "ModelError", "DataError", "RecipeError", "OptionError", "GateError",
        "NothingQuantizedError", "VerificationError",
    }  # fmt: skip
    assert set(quantool.__all__) == functions | errors | {"Stats", "kernels", "__version__"}
    assert quantool.__all__ == sorted(quantool.__all__)
    assert dir(quantool) == quantool.__all__


@pytest.mark.parametrize("name", quantool.__all__)
def test_every_name_loads_and_is_the_one_it_says(name: str) -> None:
    value = getattr(quantool, name)
    if name not in ("__version__", "kernels"):
        assert value.__name__ == name
        assert value.__doc__
    assert getattr(quantool, name) is value


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'quantool' has no attribute 'quantise'"):
        getattr(quantool, "quantise")  # noqa: B009  # the name must stay a text, or type checkers refuse the test


def test_kernels_is_the_package_of_kernels() -> None:
    assert quantool.kernels is sys.modules["quantool.kernels"]


def test_every_error_is_a_quantool_error_with_its_exit_code() -> None:
    codes = {name: getattr(quantool, name).exit_code for name in quantool.__all__ if name.endswith("Error")}
    assert codes == {
        "QuantoolError": 2, "ModelError": 2, "DataError": 2, "RecipeError": 2, "OptionError": 2, "GateError": 1,
        "NothingQuantizedError": 3, "VerificationError": 3,
    }  # fmt: skip
    assert all(issubclass(getattr(quantool, name), QuantoolError) for name in codes)


def test_str_of_an_error_holds_all_four_texts() -> None:
    error = OptionError("a-code", "what it is", where="over there", fix="do this")
    assert all(text in str(error) for text in error.to_dict().values())
    assert error.report is None


# --- the functions --------------------------------------------------------------------------------------


def test_quantize_takes_the_options_of_the_command_line(pipeline: Pipeline) -> None:
    feeds = iter(())
    result = quantool.quantize(
        "m.onnx", data=feeds, output="o.onnx", mode="static", exclude=["a"], no_verify=True, verify_data="v.npz",
        force=True, report=["r.json", Path("r.md")],
    )  # fmt: skip
    request = pipeline.request
    assert request.data is feeds
    assert (request.model, request.output, request.write) == ("m.onnx", Path("o.onnx"), True)
    assert (request.force, request.verify_data) == (True, "v.npz")
    assert request.recipe == Recipe(mode=Mode.STATIC, exclude=("a",), verify=False)
    assert request.progress is False
    assert result.report.verdict
    assert sorted(path.name for path in Path().iterdir()) == ["r.json", "r.md"]


def test_output_none_writes_nothing(pipeline: Pipeline) -> None:
    quantool.quantize("m.onnx")
    assert (pipeline.request.output, pipeline.request.write) == (None, False)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_recipe_is_a_file_a_mapping_or_a_recipe(pipeline: Pipeline, kind: type) -> None:
    Path("r.toml").write_text("mode = 'static'\nseed = 1")
    for recipe in (kind("r.toml"), {"mode": "static", "seed": 1}, from_options({"mode": "static", "seed": 1})):
        quantool.quantize("m.onnx", recipe=recipe, seed=2)
        assert pipeline.request.recipe == Recipe(mode=Mode.STATIC, seed=2)
        assert pipeline.request.reads == ((Path("r.toml"),) if isinstance(recipe, str | Path) else ())


def test_an_unknown_option_is_refused_before_any_work(pipeline: Pipeline) -> None:
    with pytest.raises(OptionError, match=r"Unknown option 'weigths'.*Did you mean 'weights'"):
        quantool.quantize("m.onnx", weigths="int8")
    with pytest.raises(OptionError, match="force is 1"):
        quantool.quantize("m.onnx", force=1)
    with pytest.raises(OptionError, match="report is 3"):
        quantool.quantize("m.onnx", report=3)
    with pytest.raises(OptionError, match=r"unknown suffix '\.pdf'"):
        quantool.quantize("m.onnx", report="r.pdf")
    with pytest.raises(RecipeError, match="Unknown key 'wat'"):
        quantool.quantize("m.onnx", recipe={"wat": 1})
    assert pipeline.request is None


def test_a_report_may_not_replace_the_model(pipeline: Pipeline) -> None:
    Path("m.json").write_text("model")
    with pytest.raises(OptionError, match="is read by this run"):
        quantool.quantize("m.json", report="m.json", force=True)
    assert (pipeline.request, Path("m.json").read_text()) == (None, "model")


def test_a_failure_writes_its_report_and_is_raised_as_it_is(pipeline: Pipeline) -> None:
    pipeline.error = GateError("gate", "too low", where="--min-sqnr", fix="-", report=report())
    with pytest.raises(GateError, match="too low"):
        quantool.quantize("m.onnx", report="r.json")
    assert '"status": "gate-failed"' in Path("r.json").read_text()


def test_ranges_takes_a_path_or_statistics_and_nothing_else(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stats:
        """Stands for the statistics."""

    monkeypatch.setattr("quantool.stats.Stats", Stats)
    stats = Stats()
    quantool.quantize("m.onnx", ranges=stats)
    assert pipeline.request.stats is stats
    assert pipeline.request.recipe.ranges is None
    quantool.quantize("m.onnx", ranges="a.qcal")
    assert pipeline.request.stats is None
    assert pipeline.request.recipe.ranges == Path("a.qcal")
    with pytest.raises(OptionError, match=r"ranges is 3.*--ranges"):
        quantool.quantize("m.onnx", ranges=3)


def test_calibrate_gives_statistics(pipeline: Pipeline) -> None:
    assert quantool.calibrate("m.onnx", data="d.npz", samples=4, output="s.qcal", force=True) == "stats"
    request = pipeline.request
    assert (request.data, request.output, request.force) == ("d.npz", Path("s.qcal"), True)
    assert request.recipe == Recipe(samples=4)


def test_calibrate_takes_how_the_samples_are_divided(pipeline: Pipeline) -> None:
    quantool.calibrate("m.onnx", shard="3/16", output="s.qcal", resume=True)
    assert (pipeline.request.shard, pipeline.request.resume) == ((3, 16), True)
    quantool.calibrate("m.onnx", shard=(3, 16), workers=2, scheduler="tcp://host:1")
    request = pipeline.request
    assert (request.shard, request.workers, request.scheduler, request.resume) == ((3, 16), 2, "tcp://host:1", False)
    for options in ({"shard": 3}, {"workers": "2"}, {"workers": True}, {"scheduler": 8786}, {"resume": "yes"}):
        with pytest.raises(OptionError, match=f"{next(iter(options))} is"):
            quantool.calibrate("m.onnx", **options)


def test_merge_takes_files_and_statistics(pipeline: Pipeline) -> None:
    stats = quantool.Stats()
    assert quantool.merge("a.qcal", stats, output="all.qcal", force=True) == "stats"
    assert pipeline.request.parts == ("a.qcal", stats)
    assert (pipeline.request.output, pipeline.request.force) == (Path("all.qcal"), True)
    assert quantool.merge("a.qcal") == "stats"
    assert pipeline.request.output is None


def test_an_error_keeps_its_texts_and_type_between_processes() -> None:
    error = GateError("a-code", "what", where="there", fix="do", report=report())
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), other.to_dict(), other.report) == (GateError, error.to_dict(), None)


def test_compare_gives_a_report_and_writes_it(pipeline: Pipeline) -> None:
    assert quantool.compare("f.onnx", "q.onnx", data="d.npz", report="r.md") == report()
    request = pipeline.request
    assert (request.float_model, request.quantized_model, request.data) == ("f.onnx", "q.onnx", "d.npz")
    assert Path("r.md").exists()


def test_sensitivity_asks_with_options_and_says_what_it_reads(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "d.npz").touch()
    quantool.sensitivity("m.onnx", "d.npz", output="m.toml", force=True, samples=8)
    request = pipeline.request
    assert (request.model, request.data, request.output, request.force) == ("m.onnx", "d.npz", Path("m.toml"), True)
    assert request.recipe == Recipe(samples=8)
    assert Path("d.npz") in request.reads


def test_explain_gives_a_report(pipeline: Pipeline) -> None:
    assert quantool.explain("m.onnx", target="generic", mode="dynamic") == report()
    assert pipeline.request.recipe == Recipe(target="generic", mode=Mode.DYNAMIC)
    quantool.explain("m.onnx")
    assert pipeline.request.recipe == Recipe()
