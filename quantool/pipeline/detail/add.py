"""Adding detail to the report of a quantization: it takes further runs, so only a report that is asked for has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quantool.pipeline.choice.decide import Calibrated, Decided
from quantool.pipeline.detail.fixes import cheapest_fixes
from quantool.pipeline.detail.layers import measure_layers
from quantool.pipeline.detail.tensors import detailed_rows
from quantool.pipeline.draft import Draft
from quantool.pipeline.job import Job
from quantool.pipeline.judge import Loaded
from quantool.runtime import Loadable, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A result as it will be published.

    loaded: as it was verified, None where it was not; weights: SQNR in dB of each distinct weight, by its key.
    """

    data: Loadable
    loaded: Loaded | None
    weights: Mapping[str, float]


def add_detail(job: Job, made: Decided, evidence: Calibrated | None, tested: Tested, *, draft: Draft) -> None:
    """Histograms and rounding errors of tensors, SQNR along the graph, and fixes. Runs no model under --memory."""
    draft.tensors = detailed_rows(
        made,
        recipe=job.recipe,
        weights=tested.weights,
    )
    loaded, recipe = tested.loaded, job.recipe
    runnable = loaded is not None and isinstance(loaded.session, Session)
    if not runnable or job.samples is None or recipe.memory is not None:
        return
    assert loaded is not None
    draft.layers, notes = measure_layers(
        made.source.normalized,
        tested.data,
        job.samples.kept,
        size_bytes=job.loaded.source.size_bytes,
        runs_as={row.name: row.runs_as for row in draft.nodes if row.runs_as is not None},
    )
    draft.warnings.extend(notes)
    if evidence is not None and draft.data is not None:
        draft.fixes = cheapest_fixes(made, evidence.judges.judging, runs=draft.data.samples, memory=recipe.memory)
