"""Loading, planning and rewriting against the incumbent, as CPU time ratios: `python -m tests.perf.rewriting`.

Both sides get a chain of Conv, Relu and Add and ranges that are known, so that neither runs the model. quantool:
read, prepare, normalize, facts, plan, solve, rewrite, apply, serialize. Incumbent: onnxruntime.quantization's
quant_pre_process (its loading and normalizing) and QDQQuantizer on the same model and ranges, without its calibration
and without loading the result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from calibrators import Histogram
from quantool import graph, targets
from quantool.edits import SetOpset
from quantool.graph.allocator import NameAllocator
from quantool.graph.edit import apply
from quantool.graph.normalize import normalize
from quantool.graph.scopes import paused_collector
from quantool.plan import Findings, examine, make_plan
from quantool.recipe import Calibrator, Recipe
from quantool.rewrite import rewrite
from quantool.schema import Mode
from quantool.solve import solve, solve_ranges

CHANNELS = 4


def chain(nodes: int) -> onnx.ModelProto:
    """Conv, Relu, Add, Relu ... with residuals; `nodes` nodes."""
    rng = np.random.default_rng(0)
    made, constants, last = [], [], "x"
    for i in range(nodes // 3):
        weight = rng.standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{i}"))
        constants.append(numpy_helper.from_array(np.zeros(CHANNELS, np.float32), f"b{i}"))
        made.append(helper.make_node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], name=f"conv{i}"))
        made.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        made.append(helper.make_node("Add", [f"r{i}", last], [f"a{i}"], name=f"add{i}"))
        last = f"a{i}"
    shape = ["n", CHANNELS, 8, 8]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)]
    made_graph = helper.make_graph(made, "chain", inputs, outputs, constants)
    return helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def ours(path: Path) -> float:
    """CPU seconds from the file to the serialized result."""
    state = Histogram().observe(np.linspace(-1, 1, 1000, dtype=np.float32))
    started = time.process_time()
    with paused_collector():
        _quantize(path, state)
    return time.process_time() - started


def _quantize(path: Path, state: Histogram) -> None:
    recipe, target = Recipe(calibrator=Calibrator.MINMAX), targets.load("cpu-x64")
    model = graph.prepare(graph.read(path), opset=13)
    normalize(model)
    facts = graph.facts(model)
    plan = make_plan(facts, recipe, target=target, mode=Mode.STATIC)
    stats = {spec.statistic: state for spec in plan.activations.values()}
    ranges = solve_ranges(plan, facts, stats, recipe)
    assert examine(plan, facts, ranges) == Findings()  # the chain has no Concat: there is nothing to plan again
    parameters = solve(plan, ranges, load=graph.constant_loader(model), recipe=recipe)
    edits = rewrite(facts, plan, parameters, fresh=NameAllocator(model).fresh)
    apply(model, [*edits, SetOpset("", plan.opset)])
    graph.serialize(model)


def theirs(path: Path) -> float:
    """CPU seconds of the incumbent's pre-processing and quantizer on the same model with ranges given."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.shape_inference import quant_pre_process

    started = time.process_time()
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(path, prepared)
    model = onnx.load(prepared)
    tensors = {o for n in model.graph.node for o in n.output} | {"x"}
    low, high = np.array(-1, np.float32), np.array(1, np.float32)
    ranges = TensorsData(CalibrationMethod.MinMax, {t: TensorData(lowest=low, highest=high) for t in tensors})
    quantizer = QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=["Conv", "Relu", "Add"],
        extra_options={},
    )
    quantizer.quantize_model()
    quantizer.model.model.SerializeToString()
    return time.process_time() - started


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--least-ratio", type=float, default=30.0, help="fail below this many times the incumbent")
    parser.add_argument("--most-growth", type=float, default=6.0, help="fail where five times the nodes take longer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.onnx", Path(folder) / "large.onnx"
        onnx.save(chain(options.nodes), small)
        onnx.save(chain(5 * options.nodes), large)
        ours(small)  # imports
        first = min(ours(small) for _ in range(3))
        second = min(ours(large) for _ in range(2))
        reference = theirs(small)
    ratio, growth = reference / first, second / first
    rows = (
        (f"{options.nodes} nodes, quantool", first, ""),
        (f"{options.nodes} nodes, incumbent", reference, f"{ratio:.0f} times (at least {options.least_ratio:g})"),
        (f"{5 * options.nodes} nodes, quantool", second, f"{growth:.1f} times (at most {options.most_growth:g})"),
    )
    for name, seconds, compared in rows:
        print(f"{name:<28} {seconds:8.2f} s CPU  {compared}")
    holds = ratio >= options.least_ratio and growth <= options.most_growth
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
