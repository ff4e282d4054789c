"""What a calibration has counted so far, kept beside its output, so that a killed one can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quantool.errors import DataError, OptionError, QuantoolError
from quantool.graph.temporary import publish
from quantool.schema import Feed
from quantool.stats import Stats

#: seconds from one checkpoint to the next, at least
INTERVAL_SECONDS = 15.0
#: a checkpoint that takes long is written less often: writing takes this share of the time at most
LARGEST_SHARE: Final = 0.02

FORMAT: Final = "quantool-checkpoint-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was counted: the statistics of the first feeds or, where `shards` is not 0, of some of so many shards."""

    stats: Stats
    shards: int = 0
    finished: tuple[int, ...] = ()


class Checkpoint:
    """The hidden file beside an output: a line that says whose counts these are, then a ``.qcal`` file.

    Attributes:
        path: the file; None without an output, and then nothing is kept.
        samples: how many feeds the file counts, 0 while this run neither goes on from it nor has written it.
    """

    def __init__(self, output: Path | None, origin: Mapping[str, object]) -> None:
        self.path = None if output is None else output.with_name(f".{output.name}.checkpoint")
        self.samples = 0
        self._origin: dict[str, Any] = json.loads(json.dumps(origin))
        self._due = time.monotonic() + INTERVAL_SECONDS

    def load(self) -> Counted | None:
        """What was counted before, None where there is no file.

        Raises:
            OptionError: it was counted with another model or other options.
            DataError: the file cannot be used.
        """
        if self.path is None:
            return None
        try:
            first, _, content = self.path.read_bytes().partition(b"\n")
            header = json.loads(first)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unusable(str(error)) from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._unusable("it is none, or one of another version of quantool")
        self._require_same(header["origin"])
        stats = Stats.from_bytes(content, where=str(self.path))
        return Counted(stats=stats, shards=header["shards"], finished=tuple(header["finished"]))

    def watch(self, feeds: Iterable[Feed], counted: Callable[[], Stats]) -> Iterator[Feed]:
        """Pass feeds on, and write a checkpoint now and then, when all feeds before the next one are counted."""
        for feed in feeds:
            yield feed
            self.offer(lambda: Counted(stats=counted()))

    def offer(self, counted: Callable[[], Counted]) -> None:
        """Write a checkpoint, if it is time for one."""
        if self.path is not None and time.monotonic() >= self._due:
            self._write(self.path, counted())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Tell whoever ends the run early how it goes on; remove the file where the run comes to its end."""
        try:
            yield
        except QuantoolError as error:
            if self.samples:
                error.fix = f"{error.fix} {self._hint()}"
            raise
        except KeyboardInterrupt as stop:
            if self.samples:
                stop.add_note(self._hint())
            raise
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _hint(self) -> str:
        return f"The same command with --resume goes on after the {self.samples} samples that are counted."

    def _write(self, path: Path, counted: Counted) -> None:
        started = time.monotonic()
        parts = {"shards": counted.shards, "finished": counted.finished}
        header = json.dumps({"format": FORMAT, "origin": self._origin, **parts})
        publish(path, header.encode() + b"\n" + counted.stats.to_bytes(), force=True)
        self.samples = counted.stats.samples
        ended = time.monotonic()
        self._due = ended + max(INTERVAL_SECONDS, (ended - started) / LARGEST_SHARE)

    def _require_same(self, origin: Mapping[str, object]) -> None:
        for name in sorted(self._origin.keys() | origin.keys()):
            now, then = self._origin.get(name), origin.get(name)
            if now != then:
                raise OptionError(
                    "resume-differs",
                    f"the checkpoint belongs to another run: {name} is {_shown(now)} now and was {_shown(then)}",
                    where=str(self.path),
                    fix="Repeat the interrupted command with --resume, or leave --resume out to start anew.",
                )

    def _unusable(self, why: str) -> DataError:
        return DataError(
            "resume-unreadable",
            f"the checkpoint cannot be used: {why}",
            where=str(self.path),
            fix="Leave --resume out to start anew.",
        )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text[:40]}'" if value not in (None, "", []) else "not given"
