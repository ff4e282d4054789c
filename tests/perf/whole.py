"""Measure the whole quantize command, verification included, against the incumbent's calibrators with pre-processing.

Run by hand: ``python -m tests.perf.whole [MODEL ...] [--samples 128] [--rounds 2] [--effort E] [-o T.md]``; real
models need what ``bash .ci/real-setup.sh`` installs. Each side is a process of its own that reads the same model and
the same folder of samples and writes its result. CPU time is user and system time of that process with all of its
threads, peak memory its largest resident set; of several rounds the least counts, the sides in turn. Compiled modules
are kept, as an installation keeps them, so one model is run once before anything is measured.

This file imports nothing heavy: a child's largest resident set begins with that of the process that started it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLE_MODELS = ("digits_mlp", "digits_cnn", "digits_depthwise", "digits_transformer", "chargpt")
REAL_MODELS = ("ppocr_cls", "ppocr_det", "magika", "basic_pitch", "silero_seq", "orientation", "minilm")
#: what the incumbent's process is, in tests.perf.whole_sides
METHODS = ("MinMax", "Percentile")
#: what the project promises: CPU time over MinMax and Percentile, memory over both, and time of the result over float's
MOST = {"CPU, MinMax": 0.8, "CPU, Percentile": 0.35, "memory, MinMax": 0.7, "memory, Percentile": 0.7, "latency": 0.75}


@dataclass
class Cost:
    """The least that a side took over the rounds."""

    seconds: float = float("inf")
    megabytes: float = float("inf")

    def add(self, seconds: float, megabytes: float) -> None:
        """Take in one more run."""
        self.seconds, self.megabytes = min(self.seconds, seconds), min(self.megabytes, megabytes)


@dataclass
class Row:
    """One model: the cost of each side, and how much of float's time the result takes; None where that is unknown."""

    name: str
    ours: Cost = field(default_factory=Cost)
    theirs: dict[str, Cost] = field(default_factory=dict)
    latency: float | None = None
    ended: str = ""

    def ratios(self) -> dict[str, float]:
        """Ours over theirs, as far as both came to a result."""
        found = {} if self.latency is None else {"latency": self.latency}
        for method, cost in self.theirs.items():
            found[f"CPU, {method}"] = self.ours.seconds / cost.seconds
            found[f"memory, {method}"] = self.ours.megabytes / cost.megabytes
        return found


def main() -> int:
    """Measure, print the table, and write it where asked to."""
    options = _options()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # compiled modules are kept whatever the environment says
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        _measured(
            "digits_mlp", Path(folder) / "compiling", options=argparse.Namespace(**{**vars(options), "rounds": 1})
        )
        for name in options.models or (*SAMPLE_MODELS, *REAL_MODELS):
            row = _measured(name, Path(folder) / name, options=options)
            rows.append(row)
            sys.stderr.write(_line(row) + "\n")
    text = table(rows)
    sys.stdout.write(text)
    if options.output:
        Path(options.output).write_text(text, encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="models by name; default: all samples and some real ones")
    parser.add_argument("--samples", type=int, default=128, help="samples that calibrate, at most")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side; the least counts")
    parser.add_argument("--effort", default="balanced", help="how much quantool tries; the incumbent tries nothing")
    parser.add_argument("-o", "--output", help="write the table to this file too")
    return parser.parse_args()


def _measured(name: str, folder: Path, *, options: argparse.Namespace) -> Row:
    """Prepare a model and its samples, and run every side in turn."""
    folder.mkdir(parents=True)
    sides = [sys.executable, "-m", "tests.perf.whole_sides"]
    subprocess.run([*sides, "prepare", name, str(folder), str(options.samples)], cwd=ROOT, check=True)
    row = Row(name=name)
    model, data = str(folder / "model.onnx"), str(folder / "data")
    for _ in range(options.rounds):
        words = [sys.executable, "-m", "quantool", "quantize", model, "--data", data, "-o", str(folder / "ours.onnx")]
        code, cost, said = _run([*words, "--force", "--effort", options.effort])
        if code:
            row.ended = f"quantool ends with {code}"
            break
        row.ours.add(*cost)
        found = re.search(r"float ([\d.e+-]+) ms,\s+quantized\s+([\d.e+-]+) ms", " ".join(said.split()))
        row.latency = None if found is None else float(found[2]) / float(found[1])
        for method in METHODS:
            _incumbent(row, method, [*sides, "incumbent", method, str(folder)])
    shutil.rmtree(folder)
    return row


def _incumbent(row: Row, method: str, words: list[str]) -> None:
    """Run it as it is advised to be run, and where that fails, as it works."""
    for way in ("plain", "no-adjustment"):
        code, cost, said = _run([*words, way])
        if code == 0:
            row.theirs.setdefault(method, Cost()).add(*cost)
            return
    row.ended += f" {method} ends with {code}: {said.strip().splitlines()[-1][:80] if said.strip() else 'killed'}"


def _run(words: list[str]) -> tuple[int, tuple[float, float], str]:
    """Exit code, CPU seconds and MB of one process, and what it printed on both streams."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return process.returncode, (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), out.read()


# --- the table ------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> str:
    """Markdown: a row a model, the geometric means against what is promised, and the results that are slower."""
    rows = list(rows)
    header = ("model", "CPU s", *(f"{m}, s" for m in METHODS), "MB", *(f"{m}, MB" for m in METHODS), "time / float", "")
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *map(_line, rows), ""]
    for name, most in MOST.items():
        values = [row.ratios()[name] for row in rows if name in row.ratios()]
        if values:
            mean = statistics.geometric_mean(values)
            verdict = "holds" if mean <= most else "does not hold"
            lines.append(f"{name}: {mean:.2f} over {len(values)} models, promised {most}: {verdict}.")
    slower = [f"{row.name} ({row.latency:.2f})" for row in rows if row.latency is not None and row.latency > 1]
    lines.append(f"Slower than float: {', '.join(slower) or 'none'}.")
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    """One row of the table."""
    theirs = [row.theirs.get(method) for method in METHODS]
    cells = [row.name, f"{row.ours.seconds:.1f}", *("-" if cost is None else f"{cost.seconds:.1f}" for cost in theirs)]
    cells += [f"{row.ours.megabytes:.0f}", *("-" if cost is None else f"{cost.megabytes:.0f}" for cost in theirs)]
    cells += ["-" if row.latency is None else f"{row.latency:.2f}", row.ended.strip()]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
