"""What is refused before any work, because passing over it in silence would lie."""

from __future__ import annotations

from quantool import graph
from quantool.errors import DataError, OptionError
from quantool.graph.reference import missing_operators
from quantool.metrics import LABELS_FIX, find
from quantool.pipeline.feeds import Samples
from quantool.pipeline.source import plain_facts
from quantool.plan import Settings, make_plan
from quantool.recipe import GraphIO, Recipe
from quantool.schema import Mode
from quantool.targets import Target


def refuse_unmeasured(recipe: Recipe) -> None:
    """Refuse options whose promise no run can keep yet.

    Raises:
        OptionError: the option, and what it would need.
    """
    if recipe.max_drop is not None and recipe.metric in (None, "sqnr"):
        raise OptionError(
            "not-measured",
            f"--max-drop {recipe.max_drop:g} needs a metric that drops from the float model's value"
            f"{'' if recipe.metric is None else ', and the float model has no noise that sqnr could start from'}",
            where="--max-drop",
            fix="Give --metric, as top1 with labels beside --data or --verify-data, or use --min-agreement or "
            "--min-sqnr, which compare with the float model without labels.",
        )
    if recipe.io is GraphIO.QUANTIZED:
        raise OptionError(
            "not-written",
            "--io quantized needs integer graph inputs and outputs, and no form writes them yet",
            where="--io",
            fix="Leave it out: inputs and outputs keep their float types.",
        )
    if recipe.memory is not None and recipe.min_speedup is not None:
        raise OptionError(
            "impossible-pair",
            "--min-speedup does not go with --memory: sessions that save memory are slower, and are not timed",
            where="--min-speedup, --memory",
            fix="Leave one of them out.",
        )


def refuse_impossible_rules(loaded: graph.Loaded, recipe: Recipe, target: Target, *, mode: Mode, opset: int) -> None:
    """Refuse types that rules give to places of this model which cannot have them, before any data is read.

    Raises:
        OptionError: the places and the types.
    """
    if any(rule.sets_types for rule in recipe.rules):
        make_plan(plain_facts(loaded, opset=opset), recipe, target=target, mode=mode)


def refuse_unlabelled(recipe: Recipe, samples: Samples | None) -> None:
    """Refuse a metric without the samples, or the labels, that it needs.

    Raises:
        DataError: what is missing.
    """
    if recipe.metric is None:
        return
    if samples is None:
        raise DataError(
            "no-data",
            f"--metric {recipe.metric} needs samples to run",
            where="--data",
            fix="Give --data or --verify-data.",
        )
    if find(recipe.metric).needs_labels and not samples.has_labels():
        raise DataError(
            "labels-missing",
            f"--metric {recipe.metric} needs labels, and the samples that verify have none",
            where=samples.verifies_on,
            fix=LABELS_FIX,
        )


def refuse_unrunnable(loaded: graph.Loaded, settings: Settings) -> None:
    """Refuse types that neither the target's runtime nor the onnx reference evaluator would run in this model.

    Raises:
        OptionError: the types, and the operators that are in the way.
    """
    if not settings.reference:
        return
    types = {kind: dict.fromkeys(getattr(each, kind) for each in settings.all) for kind in ("activations", "weights")}
    missing = missing_operators(loaded.proto, max(settings.opset, loaded.source.opset))
    if missing:
        raise OptionError(
            "type-cannot-run",
            f"ONNX Runtime cannot run {', '.join(types['activations'])} activations with {', '.join(types['weights'])} "
            "weights, and the onnx "
            f"reference evaluator lacks {', '.join(missing[:5])}",
            where="--weights, --activations",
            fix="Choose int8, uint8 or another type that the runtime loads.",
        )
