"""On a terminal: colour unless NO_COLOR is set, and no line wider than it is."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")
pty = pytest.importorskip("pty")

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROOT = Path(__file__).parents[2]


def on_terminal(*words: str, columns: int, folder: Path, **environment: str) -> str:
    """What the program prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "quantool", *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env={**given, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux tells that the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait() in (0, 2)
    return b"".join(parts).decode("utf-8")


def widest(text: str) -> int:
    """The columns that the widest line takes."""
    return max(len(line.rstrip("\r")) for line in COLOUR.sub("", text).split("\n"))


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_takes_what_the_terminal_has(columns: int, tmp_path: Path) -> None:
    text = on_terminal("targets", columns=columns, folder=tmp_path)
    assert COLOUR.search(text)
    assert columns - 10 <= widest(text) <= columns


def test_no_color_is_honoured_and_errors_are_red_without_it(tmp_path: Path) -> None:
    words = ("recipe", "check", "none.toml")
    assert COLOUR.search(on_terminal(*words, columns=80, folder=tmp_path))
    plain = on_terminal(*words, columns=80, folder=tmp_path, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "error: The recipe cannot be read" in plain


def test_help_fits_80_columns_on_a_wide_terminal_too(tmp_path: Path) -> None:
    text = on_terminal("quantize", "--help", columns=120, folder=tmp_path)
    assert widest(text) <= 80
    assert text.startswith("Usage: quantool quantize [OPTIONS] MODEL\r\n")
