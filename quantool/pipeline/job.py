"""What one quantization works with, decided before any work on the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quantool import graph, targets
from quantool.elements import ELEMENTS
from quantool.errors import OptionError
from quantool.graph.bodies import only_in_bodies
from quantool.graph.destination import refuse_full_disk, refuse_overwrite
from quantool.ops import OPS, Role
from quantool.pipeline.draft import Draft
from quantool.pipeline.feeds import Samples, open_samples
from quantool.pipeline.memory import thrift_of
from quantool.pipeline.refusals import refuse_impossible_rules, refuse_unlabelled, refuse_unmeasured, refuse_unrunnable
from quantool.pipeline.resolved import resolved_recipe, settings_of
from quantool.pipeline.source import (
    model_info,
    output_path,
    read_float,
    source_files,
)
from quantool.plan.settings import KERNEL_TYPES, Settings
from quantool.recipe import OUTPUT_GATES, Recipe
from quantool.requests import QuantizeRequest
from quantool.runtime import Thrift
from quantool.schema import Mode, Note
from quantool.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one run works with, decided before any work on the model."""

    request: QuantizeRequest
    recipe: Recipe
    resolved: Recipe
    target: Target
    mode: Mode
    loaded: graph.Loaded
    samples: Samples | None
    output: Path | None

    @property
    def thrift(self) -> Thrift:
        """What sessions must save."""
        return thrift_of(self.loaded, self.recipe.memory, has_data=self.samples is not None)

    @property
    def timed(self) -> bool:
        """Whether speed is measured: sessions that save memory are slower."""
        return self.recipe.memory is None and self.thrift is Thrift.NONE


def prepare(request: QuantizeRequest, draft: Draft) -> Job:
    """Refuse what cannot work before a byte of data is read."""
    recipe, target = request.recipe, targets.load(request.recipe.target)
    refuse_unmeasured(recipe)
    loaded = read_float(request.model, memory=recipe.memory)
    draft.model = model_info(loaded)
    samples = open_samples(request.data, request.verify_data, loaded, recipe=recipe, progress=request.progress)
    refuse_unlabelled(recipe, samples)
    if samples is not None and samples.note is not None:
        draft.warnings.append(samples.note)
    mode = _mode(request, samples, loaded)
    if recipe.mode is Mode.AUTO and mode is not Mode.STATIC and _has_evidence(request, samples):
        draft.warnings.append(IN_BODIES)
    resolved = resolved_recipe(recipe, target, mode)
    draft.recipe = resolved.to_dict()
    settings = settings_of(recipe, target, mode)
    refuse_unrunnable(loaded, settings)
    refuse_impossible_rules(loaded, recipe, target, mode=mode, opset=settings.opset)
    output = request.output
    if output is None and request.write:
        assert resolved.weights is not None
        output = output_path(loaded.source.path, resolved.weights)
    reads = source_files(loaded, samples, request.data, request.verify_data, recipe.ranges, request.reads)
    if output is not None:
        refuse_overwrite(output, reads=reads, force=request.force)
        refuse_full_disk(output.parent, _least_size(loaded, settings))
    for report in request.reports:
        refuse_overwrite(report, reads=reads, force=True)  # whether it may be replaced is the caller's matter
    return Job(
        request=request,
        recipe=recipe,
        resolved=resolved,
        target=target,
        mode=mode,
        loaded=loaded,
        samples=samples,
        output=output,
    )


def _least_size(loaded: graph.Loaded, settings: Settings) -> int:
    """Bytes that the result takes if every constant is a float32 that becomes integers, and nothing else is stored."""
    bits = min(ELEMENTS[each.weights].bits for each in settings.all)
    return loaded.source.size_bytes * bits // 32


#: the note of `auto` with data that cannot calibrate
IN_BODIES: Final = Note(
    code="not-calibrated",
    what="all products of this model stand inside If, Loop or Scan, where no ranges can be measured: they are "
    "quantized without (dynamic, or weights alone), and the data only verifies",
    where="--mode auto",
    fix="Nothing to do; `--mode weight-only` leaves activations in float.",
)

_PRODUCTS: Final = frozenset(key for key, op in OPS.items() if op.role is Role.ANCHOR)


def _has_evidence(request: QuantizeRequest, samples: Samples | None) -> bool:
    """Whether there is anything to take ranges from."""
    given = request.recipe.ranges is not None or request.stats is not None
    return given or (samples is not None and samples.calibrates)


def _mode(request: QuantizeRequest, samples: Samples | None, loaded: graph.Loaded) -> Mode:
    """What `auto` means here: static with data or ranges; AUTO stands for the mixed plan without.

    A model whose products all stand inside bodies has nothing to calibrate, whatever the data.
    """
    recipe = request.recipe
    if samples is None and any(getattr(recipe, gate) is not None for gate in OUTPUT_GATES):
        raise OptionError(
            "gate-without-data",
            "a gate on outputs or time needs samples to run",
            where="--data",
            fix="Give --data or --verify-data, or drop the gate.",
        )
    if recipe.mode is Mode.AUTO:
        if _has_evidence(request, samples) and not only_in_bodies(loaded, _PRODUCTS):
            return Mode.STATIC
        return Mode.AUTO if recipe.weights is None or recipe.weights in KERNEL_TYPES else Mode.WEIGHT_ONLY
    if recipe.mode is Mode.STATIC and not _has_evidence(request, samples):
        raise OptionError(
            "static-without-data",
            "static mode needs calibration data or ranges",
            where="--data",
            fix="Give --data, or --ranges FILE.qcal, or use --mode dynamic.",
        )
    return recipe.mode
