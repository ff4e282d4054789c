"""Memory does not grow with the number of samples, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.bed import Shell, model, normal, save

#: a sample makes 12 activations of 512 KiB; those of 128 samples together would take 800 MB
TEXT = "(float[N,3,64,64] x) => (float[N,32] y) {{ {layers} p = GlobalAveragePool(a{last}) y = Flatten(p) }}"
LAYERS = 6
#: what runs in the process: calibrate or quantize, then the peak of resident memory in KiB
SCRIPT = """
import resource, sys
from quantool.__main__ import main
code = main(sys.argv[1:])
assert code == 0, code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture
def conv(shell: Shell) -> Shell:
    """A convolution network with sizable activations, and data of 8 to 128 samples."""
    layers = []
    constants = {}
    for number in range(LAYERS):
        channels = 3 if number == 0 else 32
        constants[f"w{number}"] = normal(32, channels, 3, 3, seed=number, scale=(2 / (9 * channels)) ** 0.5)
        source = "x" if number == 0 else f"a{number - 1}"
        layers.append(f"c{number} = Conv<pads=[1,1,1,1]>({source}, w{number}) a{number} = Relu(c{number})")
    save(model(TEXT.format(layers=" ".join(layers), last=LAYERS - 1), constants), Path("m.onnx"))
    for count in (8, 32, 128):
        np.savez(f"{count}.npz", x=normal(count, 3, 64, 64))
    return shell


def peak_bytes(line: str) -> int:
    """Resident memory at its highest while a command ran."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *line.split(), "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) * 1024


@pytest.mark.parametrize("count", [128, pytest.param(32, marks=pytest.mark.full)])
def test_calibration_with_many_samples_takes_no_more_memory_than_with_8(conv: Shell, count: int) -> None:
    few, many = (peak_bytes(f"calibrate m.onnx --data {n}.npz -o {n}.qcal --threads 1") for n in (8, count))
    assert many <= 1.10 * few


@pytest.mark.full
def test_the_whole_run_takes_no_more_memory_with_many_samples(conv: Shell) -> None:
    few, many = (peak_bytes(f"quantize m.onnx --data {n}.npz -o {n}.onnx --threads 1") for n in (8, 128))
    assert many <= 1.10 * few
