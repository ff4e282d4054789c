"""How a calibration counts: in this process with checkpoints, or in shards on others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final

from quantool.collect import CollectRequest
from quantool.errors import DataError, OptionError
from quantool.pipeline.calibration.checkpoint import Checkpoint, Counted
from quantool.pipeline.calibration.cluster import Cluster
from quantool.pipeline.calibration.shards import Job, Pass, is_callable, numbering, portable, shard_feeds, versions
from quantool.pipeline.calibration.spread import Runner, spread
from quantool.pipeline.calibration.statistics import Digests
from quantool.pipeline.calibration.workers import LocalWorkers, threads_each
from quantool.pipeline.feeds import Samples, data_options, input_specs
from quantool.pipeline.memory import Taps
from quantool.pipeline.source import FloatModel
from quantool.recipe import option_flag
from quantool.requests import CalibrateRequest
from quantool.runtime import watched
from quantool.schema import Feed, Note
from quantool.solve import statistic_kind
from quantool.stats import Stats
from quantool.version import __version__

#: shards for each process, so that one that dies costs little
SHARDS_EACH: Final = 4
#: options that may change between an interrupted run and the one that goes on: they change no byte
FREE: Final = ("threads",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The statistics of a run; before: how many samples an interrupted run had counted."""

    stats: Stats
    before: int = 0
    notes: tuple[Note, ...] = ()


def refuse_undividable(request: CalibrateRequest) -> None:
    """Refuse what cannot be counted in parts, and options that contradict each other, before any work."""
    spread_by = "--workers" if request.workers is not None else "--scheduler" if request.scheduler else None
    if request.workers is not None and request.scheduler is not None:
        raise _refused("--workers", "does not go with --scheduler", "Leave one of them out.")
    if request.workers is not None and request.workers < 1:
        raise _refused("--workers", f"is {request.workers}", "Give a number from 1 up.")
    divided_by = spread_by or ("--shard" if request.shard is not None else None)
    if divided_by is not None and statistic_kind(request.recipe) == "moving-average":
        what = "divides the samples, and --calibrator moving-average depends on their order"
        raise _refused(divided_by, what, f"Leave {divided_by} out, or use another calibrator.")
    if spread_by is not None and not (request.data is None or _sources(request.data)):
        what = "needs data that other processes can read, and feeds in memory are in this one alone"
        raise _refused(spread_by, what, "Give a path or 'package.module:callable'.")
    if request.resume and request.output is None:
        raise _refused("--resume", "needs the output that the interrupted run was to write", "Give --output.")


def origin_of(request: CalibrateRequest, wanted: CollectRequest, taps: Taps) -> dict[str, object]:
    """What a checkpoint must have in common with the run that goes on from it, by the names that errors use."""
    divided = request.workers is not None or request.scheduler is not None
    recipe = {option_flag(k): v for k, v in request.recipe.to_dict().items() if k not in FREE}
    return {
        "the model": wanted.model_sha256,
        "the normalized graph": wanted.graph_sha256,
        "the version of quantool": __version__,
        "the Gram matrices of one pass": hashlib.sha256("\n".join(sorted(wanted.grams)).encode()).hexdigest(),
        "the way to count": "with --workers or --scheduler" if divided else "in one process",
        # --memory itself may change, because no grouping of tensors changes a byte.
        "what --memory makes sessions save": str(taps.model.thrift),
        "--shard": None if request.shard is None else f"{request.shard[0]}/{request.shard[1]}",
        **recipe,
    }


def gathered(
    request: CalibrateRequest,
    source: FloatModel,
    samples: Samples,
    wanted: CollectRequest,
    checkpoint: Checkpoint,
    *,
    taps: Taps,
) -> Gathered:
    """The statistics of the request's samples, the same bytes however they are counted."""
    if request.workers is None and request.scheduler is None:
        found = _in_this_process(request, taps, samples, wanted, checkpoint)
    else:
        found = _in_shards(request, source, samples, wanted, checkpoint, groups=taps.groups)
    if found.stats.samples == 0:
        found = replace(found, notes=(*found.notes, _empty_shard(samples)))
    return replace(found, stats=replace(found.stats, sources=(samples.description,)))


def _in_this_process(
    request: CalibrateRequest, taps: Taps, samples: Samples, wanted: CollectRequest, checkpoint: Checkpoint
) -> Gathered:
    feeds = taps.watch(samples.calibration())
    before = checkpoint.load() if request.resume else None
    notes = (_nothing_to_resume(checkpoint),) if request.resume and before is None else ()
    stats, done = None, 0
    if before is not None:
        stats, done = before.stats, before.stats.samples
        again = watched(islice(feeds, done), "reading again", progress=request.progress, total=done)
        _require_counted(again, stats)
        checkpoint.samples = done
    work = Pass(wanted, stats)
    left = checkpoint.watch(feeds, work.stats)
    shown = watched(left, "calibrating", progress=request.progress, total=samples.length, done=done)
    number = numbering(request.shard, done=done)
    work.run(taps.model, shown, groups=taps.groups, number=number)
    return Gathered(stats=work.stats(), before=done, notes=notes)


def _require_counted(feeds: Iterable[Feed], before: Stats) -> None:
    """Read the feeds that are counted already, without running them.

    Raises:
        DataError: they are not the ones that were counted.
    """
    digests = Digests()
    for _ in digests.watch(feeds):
        pass
    if digests.found != before.feeds:
        raise DataError(
            "resume-other-data",
            f"the {before.samples} samples that the checkpoint counts are not those of the data",
            where="--data",
            fix="Give the data of the interrupted run, or leave --resume out to start anew.",
        )


def _in_shards(
    request: CalibrateRequest,
    source: FloatModel,
    samples: Samples,
    wanted: CollectRequest,
    checkpoint: Checkpoint,
    *,
    groups: tuple[tuple[str, ...], ...],
) -> Gathered:
    data = _sources(samples.beside if request.data is None else request.data)
    run, slots, threads = _runner(request)
    job = _job(request, source, wanted, groups=groups, data=data, threads=threads)
    before = checkpoint.load() if request.resume else None
    notes = (_nothing_to_resume(checkpoint),) if request.resume and before is None else ()
    if before is None:
        # Each shard calls a callable anew, so that more of them would cost more than a lost one.
        count = slots if any(map(is_callable, data)) else slots * SHARDS_EACH
        count, finished, merged = min(count, samples.length or count), [], None
    else:
        count, finished, merged = before.shards, list(before.finished), before.stats
        again = chain.from_iterable(shard_feeds(job, (number, count)) for number in finished)
        _require_counted(watched(again, "reading again", progress=request.progress), merged)
        checkpoint.samples = merged.samples
    left = [(number, count) for number in range(1, count + 1) if number not in finished]
    parts = spread(job, left, run)
    shown = watched(parts, "calibrating", progress=request.progress, total=count, done=len(finished), unit="shards")
    for number, part in shown:
        merged = part if merged is None else merged.merge(part)
        finished.append(number)
        checkpoint.offer(partial(Counted, stats=merged, shards=count, finished=tuple(finished)))
    assert merged is not None, "there is one shard at least"
    return Gathered(stats=merged, before=0 if before is None else before.stats.samples, notes=notes)


def _runner(request: CalibrateRequest) -> tuple[Runner, int, int]:
    """What runs shards, how many at a time, and the threads of each."""
    if request.workers is not None:
        return LocalWorkers(request.workers), request.workers, threads_each(request.workers)
    assert request.scheduler is not None
    cluster = Cluster(request.scheduler)
    return cluster, cluster.slots(), 1


def _job(
    request: CalibrateRequest,
    source: FloatModel,
    wanted: CollectRequest,
    *,
    groups: tuple[tuple[str, ...], ...],
    data: Sequence[str],
    threads: int,
) -> Job:
    model, folder = source.normalized.model, source.normalized.folder
    assert isinstance(model, bytes)
    return Job(
        model=model,
        folder=None if folder is None else folder.absolute(),
        threads=request.recipe.threads or threads,
        request=wanted,
        groups=groups,
        thrift=source.normalized.thrift,
        data=tuple(portable(data)),
        inputs=tuple(input_specs(source.loaded)),
        options=data_options(request.recipe, request.shard),
        versions=versions(),
    )


def _sources(data: object) -> tuple[str, ...]:
    """Data that another process can read, else nothing."""
    parts = data if isinstance(data, list | tuple) else (data,)
    return tuple(str(part) for part in parts) if all(isinstance(part, str | Path) for part in parts) else ()


def _refused(option: str, what: str, fix: str) -> OptionError:
    return OptionError("impossible-pair", f"{option} {what}", where=option, fix=fix)


def _nothing_to_resume(checkpoint: Checkpoint) -> Note:
    return Note(
        code="nothing-to-resume",
        what="there is no checkpoint, so that the calibration started anew",
        where=str(checkpoint.path),
        fix="Nothing to do.",
    )


def _empty_shard(samples: Samples) -> Note:
    return Note(
        code="empty-shard",
        what="the shard holds no sample, because there are more shards than samples; its file counts nothing",
        where=samples.description,
        fix="Nothing to do: it merges like the others.",
    )
