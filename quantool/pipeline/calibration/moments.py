"""Gram matrices within --memory: as many layers a pass over the data as fit, and what is finished on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrators import Gram
from calibrators.fixed_point import GridSums, Int64
from quantool.collect import CollectRequest
from quantool.errors import DataError, OptionError
from quantool.pipeline.calibration.statistics import planner_of
from quantool.pipeline.feeds import Samples
from quantool.pipeline.memory import feed_bytes, gram_bytes, passes
from quantool.pipeline.source import FloatModel
from quantool.recipe import Recipe
from quantool.stats import Stats


def divided(source: FloatModel, wanted: CollectRequest, samples: Samples, *, recipe: Recipe) -> list[CollectRequest]:
    """What each pass over the data collects: everything in the first, and in each the Gram matrices that fit.

    Raises:
        OptionError: ``memory-too-small``.
    """
    probes = samples.probes() if recipe.memory is not None and wanted.grams else ()
    if recipe.memory is None or not probes:
        return [wanted]
    planner = planner_of(source, replace(wanted, grams={}), samples, bound=recipe.memory, probes=len(probes))
    sizes = {key: gram_bytes(layer) for key, layer in wanted.grams.items()}
    left = recipe.memory - planner.plan(max(probes, key=feed_bytes)).estimate - max(sizes.values())
    runs = passes(sizes, left)
    parts = [replace(wanted, grams={key: wanted.grams[key] for key in keys}) for keys in runs]
    return [parts[0], *(replace(part, kinds={}, channels={}) for part in parts[1:])]


def refuse_read_once(data: object) -> None:
    """Refuse data that can be read once for a run that reads it again.

    Raises:
        OptionError: it is an iterator.
    """
    if isinstance(data, Iterator):
        raise OptionError(
            "data-read-once",
            "the Gram matrices do not fit in memory together, so that the data is read several times, and an "
            "iterator can be read once",
            where="--memory",
            fix="Give a list or a path, or more memory.",
        )


def joined(first: Stats, later: Stats) -> Stats:
    """The statistics of two passes over the same data.

    Raises:
        DataError: the data was not the same.
    """
    if first.feeds != later.feeds:
        raise DataError(
            "data-changed",
            "another pass over the data read other samples than the first",
            where="--data",
            fix="Give data that is the same whenever it is read.",
        )
    return replace(first, grams={**first.grams, **later.grams})


def on_disk(stats: Stats, folder: Path | None) -> Stats:
    """The same statistics, whose Gram matrices lie in a file without a name instead of in memory."""
    return replace(stats, grams={key: _mapped(gram, folder) for key, gram in stats.grams.items()})


def _mapped(gram: Gram, folder: Path | None) -> Gram:
    def stored(part: Int64) -> Int64:
        with tempfile.TemporaryFile(dir=folder) as file:
            part.tofile(file)
            file.flush()
            return np.memmap(file, np.int64, "r", shape=part.shape)

    return replace(gram, sums=GridSums({exponent: stored(part) for exponent, part in gram.sums}))
