"""Large models against a floor and the incumbent: `python -m tests.perf.streaming --sizes 1G 4G`.

Each program runs in a process of its own on the same decoder with external data. Private memory is what no file backs
(RssAnon of /proc/PID/status) and what is dirty (Private_Dirty of smaps_rollup), the most of either seen every 5 ms. CPU
time is user and system time of the process, its start included. Floor: read each matrix by memory map, find the scales,
quantize, write. Incumbent: onnxruntime.quantization's quantize_dynamic (int8) and MatMulNBitsQuantizer (int4 in blocks
of 32), on models up to --incumbent-to, since they hold the whole model in memory several times.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from quantool.kernels import pack_lowbit, quantize_linear
from sample_models.decoder.__main__ import parse_size
from sample_models.decoder.config import DecoderConfig
from sample_models.decoder.random_weights import RandomWeights
from sample_models.decoder.write import write_decoder

PERIOD_S = 0.005
BLOCK = 32
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process. private_bytes: its peak; cpu_s: user and system time."""

    private_bytes: int
    cpu_s: float
    wall_s: float


def private_bytes(pid: int) -> int:
    """What no file backs, or is dirty, whichever is more; 0 once the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (OSError, ProcessLookupError):
        return 0
    found = (re.search(r"RssAnon:\s+(\d+)", status), re.search(r"Private_Dirty:\s+(\d+)", rollup))
    return max((int(each[1]) * 1024 for each in found if each), default=0)


def measured(words: Sequence[str]) -> Run:
    """Run a Python program to its end. Raises CalledProcessError where it fails."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak, pid = 0, 0
    while not pid:
        peak = max(peak, private_bytes(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        time.sleep(PERIOD_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return Run(private_bytes=peak, cpu_s=usage.ru_utime + usage.ru_stime, wall_s=time.monotonic() - started)


def write_model(path: Path, size: int) -> int:
    """A decoder of about this size; returns the bytes of its weights. Below 0.8 GB it is narrower."""
    wide = size >= 800_000_000
    config = DecoderConfig(
        hidden=2048 if wide else 1024,
        intermediate=5632 if wide else 2816,
        heads=32 if wide else 16,
        kv_heads=8,
        vocabulary=32000 if wide else 16000,
    ).of_size(size)
    write_decoder(path, config, RandomWeights(config, 0))
    for written in path.parent.iterdir():  # what is not on the disk yet would count as dirty where it is mapped
        with written.open("rb") as file:
            os.fsync(file.fileno())
    return config.size


def quantool(model: Path, output: Path, weights: str, *options: str) -> list[str]:
    """The command line of ours."""
    words = ["-m", "quantool", "quantize", str(model), "-o", str(output), "--mode", "weight-only"]
    return [*words, "--weights", weights, "--force", "--quiet", *options]


# --- the floor and the incumbent, each in a process of its own ------------------------------------------


def floor(model: Path, output: Path, weights: str) -> None:
    """Quantize every matrix of a model, one scale a column, or one for each 32 rows of it, into one file."""
    with output.open("wb") as file:
        for matrix in _matrices(model):
            rows = BLOCK if weights == "int4" else len(matrix)
            bound = (
                np.abs(matrix.reshape(-1, rows, matrix.shape[1])).max(axis=1) if weights == "int4" else _bound(matrix)
            )
            scale = np.maximum(bound / np.float32(7 if weights == "int4" else 127), np.float32(1e-30))
            block = BLOCK if weights == "int4" else 0
            codes = quantize_linear(matrix, scale, axis=0 if block else 1, block_size=block, output_dtype=weights)
            file.write(scale.data)
            file.write(pack_lowbit(codes).data if weights == "int4" else codes.data)


def _bound(matrix: np.ndarray) -> np.ndarray:
    return np.maximum(matrix.max(axis=0), -matrix.min(axis=0))


def _matrices(model: Path) -> Iterator[np.ndarray]:
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        fields = {item.key: item.value for item in tensor.external_data}
        if fields and len(tensor.dims) == 2:
            path, offset = model.with_name(fields["location"]), int(fields["offset"])
            yield np.memmap(path, np.float32, "r", offset, tuple(tensor.dims))


def incumbent(model: Path, output: Path, weights: str) -> None:
    """What onnxruntime.quantization makes of a model."""
    if weights == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(model, output, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=True)
        return
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(model), bits=4, block_size=BLOCK, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(output), use_external_data_format=True)


# --- the table ------------------------------------------------------------------------------------------


def report(size: int, folder: Path, *, with_incumbent: bool) -> None:
    """Measure all programs on a model of a size, and print a row for each."""
    model = folder / "m.onnx"
    weight_bytes = write_model(model, size)
    gigabytes = weight_bytes / 1e9
    for weights in ("int8", "int4"):
        programs = {
            "floor": _this("floor", model, folder / "floor", weights),
            "quantool --effort fast": quantool(model, folder / "fast.onnx", weights, "--effort", "fast"),
            "quantool": quantool(model, folder / "ours.onnx", weights),
        }
        if with_incumbent:
            programs["incumbent"] = _this("incumbent", model, folder / "theirs.onnx", weights)
        least = None
        for name, words in programs.items():
            run = measured(words)
            least = least or run.cpu_s
            print(
                f"{gigabytes:5.2f} {weights:5} {name:24} {run.cpu_s:7.1f} {run.cpu_s / gigabytes:7.2f} "
                f"{run.cpu_s / least:6.1f} {run.wall_s:7.1f} {run.private_bytes / MB:9.0f} "
                f"{run.private_bytes / weight_bytes:6.2f}",
                flush=True,
            )
            for path in folder.iterdir():
                if not path.name.startswith("m.onnx"):
                    path.unlink()
    for path in folder.iterdir():
        path.unlink()


def _this(program: str, model: Path, output: Path, weights: str) -> list[str]:
    return ["-m", "tests.perf.streaming", "--run", program, str(model), str(output), weights]


def main() -> None:
    """Print the table, or run one of the two other programs."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.streaming", description=__doc__)
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[1 << 30])
    parser.add_argument("--incumbent-to", type=parse_size, default=3 << 29)
    parser.add_argument("--folder", type=Path, help="where the models go for the time; default: the system's")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        program, model, output, weights = options.run
        {"floor": floor, "incumbent": incumbent}[program](Path(model), Path(output), weights)
        return
    print("   GB type  program                    cpu s  s a GB  floor  wall s  peak MB  of it")
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            report(size, Path(folder), with_incumbent=size <= options.incumbent_to)


if __name__ == "__main__":
    main()
