"""The program as a process: streams that break, encodings, and the time it takes to start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "quantool"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, env={**os.environ, **environment})


def test_usage_errors_keep_stdout_empty_and_exit_2() -> None:
    done = run("quantize")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: Missing argument 'MODEL'.\n  where: quantool quantize\n")


def test_a_reader_that_leaves_early_changes_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*PROGRAM, "targets", "--json"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_that_cannot_be_printed_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, "targets"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_names_that_the_terminal_cannot_show_are_escaped() -> None:
    done = run("quantize", "m.onnx", "--report", "ä.pdf", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert r"The report '\xe4.pdf'" in done.stderr


def cpu_seconds(*words: str) -> float:
    """CPU time of one process."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.perf
def test_start_up_takes_little_more_than_typer_and_bare_python() -> None:
    sides = {
        "python": ("-c", "pass"),
        "typer": ("-c", "import typer"),
        "import": ("-c", "import quantool"),
        "version": ("-m", "quantool", "--version"),
        "help": ("-m", "quantool", "--help"),
    }
    rounds = [{name: cpu_seconds(*words) for name, words in sides.items()} for _ in range(10)]
    best = {name: min(found[name] for found in rounds) for name in sides}
    assert best["help"] <= 2.5 * best["typer"]
    assert best["version"] <= 1.5 * best["typer"]
    assert best["import"] <= 1.5 * best["python"]


@pytest.mark.parametrize(("given", "found"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_algebra_runs_on_one_thread_unless_asked_otherwise(given: dict[str, str], found: str) -> None:
    code = "import os; from quantool.__main__ import main; main(['--help']); print(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**environment, **given}
    )
    assert done.stdout.splitlines()[-1] == found
