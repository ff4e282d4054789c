"""The private memory of this process, and the most of it that was seen."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
PERIOD_S: Final = 0.005
#: glibc's M_MMAP_THRESHOLD, and the size from which blocks go back to the system when they are freed
MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 1024 * 1024


def private_bytes() -> int | None:
    """Resident memory that no file backs, so that mapped weights do not count; None where the system does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("RssAnon:"))
    return next((int(parts[1]) * 1024 for parts in found), None)


def machine_bytes() -> int | None:
    """The memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def return_freed_blocks() -> None:
    """Let glibc give large blocks back as they are freed, for good; it would keep those up to 32 MiB, in fragments."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)


class Peak:
    """The most private memory seen so far; None where the system does not tell."""

    def __init__(self) -> None:
        self.bytes = private_bytes()

    def look(self) -> None:
        """See what there is now."""
        now = private_bytes()
        if now is not None and self.bytes is not None:
            self.bytes = max(self.bytes, now)


@contextmanager
def watched_memory() -> Iterator[Peak]:
    """Look every 5 milliseconds, from a thread, which costs less than a per cent of one core."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(PERIOD_S):
            peak.look()

    thread = threading.Thread(target=watch, name="quantool-memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak.look()
