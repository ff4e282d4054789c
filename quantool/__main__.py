"""The program: ``quantool`` and ``python -m quantool``."""

from __future__ import annotations

import os
import sys

from quantool.version import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run a command line (by default the process's own) and give its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        sys.stdout.write(f"quantool {__version__}\n")
        return 0
    # NumPy's algebra on several threads waits in busy loops, and its sums depend on how many there are. Not so a run's
    # results and its CPU time; ONNX Runtime has threads of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from quantool.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
