"""The limits of large models at an eighth of their size; `python -m tests.perf.streaming` measures 1 and 4 GB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.perf.streaming import measured, quantool, write_model

SIZE = 512 << 20
MOST_PRIVATE_BYTES = 300_000_000
#: CPU seconds a GB beside those of starting the process: noise of a busy machine included
MOST_CPU_S = {"int8": 3.0, "int4": 6.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("large") / "m.onnx"
    return path, write_model(path, SIZE)


@pytest.mark.perf
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_half_a_gigabyte_takes_less_private_memory_than_itself(model: tuple[Path, int], weights: str) -> None:
    path, size = model
    assert size > 500_000_000
    started = measured(["-m", "quantool", "explain", str(path), "--quiet"])
    run = measured(quantool(path, path.with_name(f"{weights}.onnx"), weights, "--effort", "fast"))
    assert run.private_bytes < MOST_PRIVATE_BYTES
    assert run.cpu_s - started.cpu_s < MOST_CPU_S[weights] * size / 1e9
