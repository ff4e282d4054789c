"""merge: the statistics of several calibrations as those of one over all of their data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from quantool.errors import OptionError, QuantoolError
from quantool.graph.destination import refuse_overwrite
from quantool.graph.temporary import publish
from quantool.pipeline.draft import Draft
from quantool.report.model import DataInfo, OutputInfo
from quantool.requests import CalibrateResult, MergeRequest
from quantool.schema import Note
from quantool.stats import Stats


def merge(request: MergeRequest) -> CalibrateResult:
    """The same statistics, and the same file, in whatever order the parts are given.

    Raises QuantoolError where the parts belong to different models or were counted in different ways.
    """
    draft = Draft(command="merge")
    with draft.attached():
        if not request.parts:
            raise OptionError("no-parts", "there is nothing to merge", where="merge", fix="Name .qcal files.")
        if request.output is not None:
            files = [Path(part) for part in request.parts if not isinstance(part, Stats)]
            refuse_overwrite(request.output, reads=files, force=request.force)
        merged, twice = _merged(request.parts)
        if twice:
            draft.warnings.append(_counted_twice(twice, len(request.parts)))
        count = len(request.parts)
        draft.data = DataInfo(source=" + ".join(merged.sources), samples=merged.samples, held_out=False)
        draft.verdict = (
            f"{count} {'part' if count == 1 else 'parts'} merged: {len(merged.tensors)} tensors "
            f"calibrated on {merged.samples:,} samples."
        )
        if request.output is not None:
            draft.output = written(merged, request.output, force=request.force)
        return CalibrateResult(stats=merged, report=draft.report())


def written(stats: Stats, output: Path, *, force: bool) -> OutputInfo:
    """Write a ``.qcal`` file, whole or not at all."""
    content = stats.to_bytes()
    publish(output, content, force=force)
    return OutputInfo(path=str(output), sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def _merged(parts: Sequence[str | Path | Stats]) -> tuple[Stats, int]:
    """All parts together, and how many feeds stand in more than one of them."""
    merged: Stats | None = None
    holders: Counter[int] = Counter()
    for number, part in enumerate(parts, 1):
        stats = part if isinstance(part, Stats) else Stats.load(part)
        holders.update(set(stats.feeds))
        try:
            merged = stats if merged is None else merged.merge(stats)
        except QuantoolError as error:
            name = f"part {number}" if isinstance(part, Stats) else str(part)
            fix = "Merge only files of one model." if error.code == "stats-other-model" else error.fix
            raise type(error)(error.code, error.what, where=f"{name}: {error.where}", fix=fix) from error
    assert merged is not None
    return merged, sum(count > 1 for count in holders.values())


def _counted_twice(feeds: int, parts: int) -> Note:
    return Note(
        code="duplicate-samples",
        what=f"{feeds} {'sample stands' if feeds == 1 else 'samples stand'} in more than one part and count each time",
        where=f"{parts} parts",
        fix="Merge every shard once, and calibrate only samples that are new.",
    )
