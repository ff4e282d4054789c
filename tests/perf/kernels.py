"""Measure the hot kernels as ratios: to a copy of the same bytes and to ONNX Runtime's QuantizeLinear.

Run by hand: ``python tests/perf/kernels.py --size-mb 64 --check``. Times are CPU time of the process (one thread, so
it is steadier than the wall clock on a busy machine), each figure the median of rounds in which the three sides run
in turn. All three write to memory that exists: the copy to an array in use, ONNX Runtime to its arena, ours to
``out``; one line more gives the first case with a new array for every call. ``--check`` fails where a ratio is below
the one that the project promises.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[2]))

from quantool.kernels import dequantize_linear, pack_lowbit, quantize_linear

F32 = np.dtype(np.float32)
INT8, INT16, UINT8 = np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.uint8)
INT4, F16 = np.dtype(ml_dtypes.int4), np.dtype(np.float16)
SMALL_TENSOR_LIMIT_US = 25.0
SMALL_ROUNDS = 2000


@dataclass(frozen=True)
class Case:
    """One row of the table: a shape, a granularity, types, and the ratios promised for it."""

    name: str
    row: tuple[int, ...]
    axis: int | None = None
    block: int = 0
    dtype: np.dtype = INT8
    x_dtype: np.dtype = F32
    zero: int = 0
    packed: bool = False
    of_memcpy: float | None = None
    of_ort: float | None = None


CASES = [
    Case("one scale", (4096,), of_memcpy=0.55, of_ort=0.30),
    Case("one scale, uint8, zero point 128", (4096,), dtype=UINT8, zero=128),
    Case("first axis, rows of 4096", (4096,), axis=0, of_memcpy=0.42, of_ort=0.25),
    Case("first axis, rows of 9", (9,), axis=0),
    Case("last axis", (4096,), axis=1, of_memcpy=0.42, of_ort=20),
    Case("convolution weights, axis 1", (64, 3, 3), axis=1, of_memcpy=0.42, of_ort=3),
    Case("blocks of 32", (4096,), axis=1, block=32, of_memcpy=0.35, of_ort=0.20),
    Case("blocks of 128", (4096,), axis=1, block=128, of_memcpy=0.35, of_ort=0.20),
    Case("blocks of 32, first axis", (4096,), axis=0, block=32),
    Case("packed int4, blocks of 32", (4096,), axis=1, block=32, dtype=INT4, packed=True, of_memcpy=0.30, of_ort=0.7),
    Case("int16, one scale", (4096,), dtype=INT16, of_memcpy=0.42, of_ort=0.3),
    Case("float16 input, one scale", (4096,), x_dtype=F16, of_ort=2),
    Case("float16 input, first axis", (4096,), axis=0, x_dtype=F16),
]

ONNX_TYPES = {
    F32: TensorProto.FLOAT,
    F16: TensorProto.FLOAT16,
    INT8: TensorProto.INT8,
    UINT8: TensorProto.UINT8,
    INT16: TensorProto.INT16,
    INT4: TensorProto.INT4,
}


@dataclass(frozen=True)
class Problem:
    """The arrays of one case at one size; the codes go to ``codes``, packed ones from there to ``out``."""

    case: Case
    x: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    codes: np.ndarray
    out: np.ndarray

    def quantize(self, threads: int = 1, *, fresh: bool = False) -> np.ndarray:
        axis = 1 if self.case.axis is None else self.case.axis
        codes = quantize_linear(
            self.x,
            self.scale,
            self.zero_point,
            axis=axis,
            block_size=self.case.block,
            opset=21,
            threads=threads,
            out=None if fresh else self.codes,
        )
        return pack_lowbit(codes, out=self.out) if self.case.packed else codes


def make_problem(case: Case, size_mb: int) -> Problem:
    elements = size_mb * (1 << 20) // 4
    shape = (elements // int(np.prod(case.row)), *case.row)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(case.x_dtype, copy=False)
    parameters: tuple[int, ...] = ()
    if case.axis is not None:
        parameters = (shape[case.axis],)
    if case.axis is not None and case.block:
        parameters = tuple(-(-n // case.block) if i == case.axis else n for i, n in enumerate(shape))
    scale = np.full(parameters, 0.3 if case.packed else 0.03, case.x_dtype)
    zero = np.full(parameters, case.zero, np.int32).astype(case.dtype)
    codes = np.zeros(shape, case.dtype)
    return Problem(case, x, scale, zero, codes, np.zeros(elements // 2 if case.packed else 0, np.uint8))


def runtime_call(problem: Problem, threads: int) -> Callable[[], object]:
    """A bound run of a one-node session: input and parameters stay where they are."""
    case = problem.case
    attributes = {} if case.axis is None else {"axis": case.axis, "block_size": case.block}
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)
    x_type, y_type = ONNX_TYPES[case.x_dtype], ONNX_TYPES[case.dtype]
    zero = problem.zero_point
    raw = pack_lowbit(zero) if case.packed else zero
    graph = helper.make_graph(
        [node],
        "quantize",
        [helper.make_tensor_value_info("x", x_type, problem.x.shape)],
        [helper.make_tensor_value_info("y", y_type, problem.x.shape)],
        [
            onnx.numpy_helper.from_array(problem.scale, "s"),
            helper.make_tensor("z", y_type, zero.shape, raw.tobytes(), raw=True),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", problem.x)
    binding.bind_output("y", "cpu")
    return lambda: session.run_with_iobinding(binding)


def medians(sides: list[Callable[[], object]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Median seconds of each side, the sides run in turn."""
    for side in sides:
        side()
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            start = clock()
            side()
            found.append(clock() - start)
    return [statistics.median(found) for found in times]


def ratio_rows(size_mb: int, rounds: int) -> Iterator[tuple[Case, float, float, float]]:
    """Case, GB/s of float32 elements, ratio to the copy, ratio to ONNX Runtime."""
    for case in CASES:
        problem = make_problem(case, size_mb)
        # A copy of real memory: fresh zeros would all be read from one page.
        source = problem.x.astype(F32)
        target = np.empty_like(source)
        sides = [problem.quantize, lambda s=source, t=target: np.copyto(t, s), runtime_call(problem, 1)]
        ours, copy, runtime = medians(sides, rounds, time.process_time)
        yield case, problem.x.size * 4 / ours / 1e9, copy / ours, runtime / ours


def fresh_output_ratio(size_mb: int, rounds: int) -> float:
    """The first case with a new output array a call, as a ratio to the copy."""
    problem = make_problem(CASES[0], size_mb)
    target = np.empty_like(problem.x)
    sides = [lambda: problem.quantize(fresh=True), lambda: np.copyto(target, problem.x)]
    ours, copy = medians(sides, rounds, time.process_time)
    return copy / ours


def small_tensor_us() -> dict[str, float]:
    """Least wall time of one call on 64 by 64 values, in microseconds."""
    x = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    scale, zero = np.full(64, 0.03, np.float32), np.zeros(64, np.int8)
    codes = quantize_linear(x, scale[0], zero[0])
    calls = {
        "quantize, one scale": lambda: quantize_linear(x, scale[0], zero[0]),
        "quantize, first axis": lambda: quantize_linear(x, scale, zero, axis=0),
        "quantize, last axis": lambda: quantize_linear(x, scale, zero, axis=1),
        "dequantize, one scale": lambda: dequantize_linear(codes, scale[0], zero[0]),
    }
    return {name: _least(call) * 1e6 for name, call in calls.items()}


def _least(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(SMALL_ROUNDS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def thread_gain(size_mb: int, rounds: int) -> float:
    """Wall time of one thread over that of two; the least of the rounds, since neighbours only add."""
    problem = make_problem(CASES[0], size_mb)
    best = {1: float("inf"), 2: float("inf")}
    for _ in range(rounds):
        for threads in best:
            start = time.perf_counter()
            problem.quantize(threads)
            best[threads] = min(best[threads], time.perf_counter() - start)
    return best[1] / best[2]


def _verdict(value: float, limit: float | None) -> str:
    return "" if limit is None else f" ({'>=' if value >= limit else 'BELOW'} {limit:g})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=64, help="megabytes of float32 (default 64)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds a figure (default 7)")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promised ratio is not reached")
    options = parser.parse_args()
    missed = 0
    print(f"{'case':36s} {'GB/s':>6s}  of memcpy         of ONNX Runtime")
    for case, speed, copy, runtime in ratio_rows(options.size_mb, options.rounds):
        left, right = _verdict(copy, case.of_memcpy), _verdict(runtime, case.of_ort)
        missed += ("BELOW" in left) + ("BELOW" in right)
        print(f"{case.name:36s} {speed:6.1f}  {f'{copy:.2f}{left}':16s}  {runtime:.2f}{right}")
    print(f"one scale, fresh output: {fresh_output_ratio(options.size_mb, options.rounds):.2f} of memcpy")
    for name, microseconds in small_tensor_us().items():
        missed += microseconds > SMALL_TENSOR_LIMIT_US
        print(f"64 x 64, {name}: {microseconds:.1f} us (at most {SMALL_TENSOR_LIMIT_US:g})")
    print(f"two threads over one: {thread_gain(options.size_mb, options.rounds):.2f}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
