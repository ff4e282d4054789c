"""What the recipe leaves to the mode and the target, decided once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quantool.elements import ELEMENTS, PER_AXIS_OPSET, required_opset
from quantool.errors import OptionError
from quantool.formulas import FORMULAS, formula_for
from quantool.recipe import FLOAT, Calibrator, Recipe, Rule, impossible_rules
from quantool.schema import Format, Mode
from quantool.targets import Target

#: types that integer kernels multiply; everything else is computed in float
KERNEL_TYPES = frozenset({"int8", "uint8"})
#: by whether the type of the weights is a floating one
_WEIGHT_FORMULAS = {False: ("onnx", "onnx-symmetric"), True: ("onnx-symmetric",)}
#: they look for the range of least error on evenly spaced codes, which floating types do not have
_EVEN_STEPS = (Calibrator.MSE, Calibrator.ENTROPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved types and forms. axis_scales: a scale for each channel; block_size: 0 unless in blocks.

    reference: the target's runtime cannot run the types; the onnx reference evaluator can. weight_formula: the one that
    the user named, where weights alone are quantized; plain_weights: those are read from DequantizeLinear, whatever
    form the target has for them. variants: what rules make of these settings somewhere.
    """

    mode: Mode
    format: Format
    activations: str
    weights: str
    weight_bits: int
    axis_scales: bool
    block_size: int
    formula: str
    reference: bool
    weight_formula: str | None = None
    plain_weights: bool = False
    variants: tuple[Settings, ...] = ()

    @property
    def symmetric_activations(self) -> bool:
        """Whether zero is forced to the middle of the grid, so that no Relu is implied by saturation."""
        return FORMULAS[self.formula].symmetric

    @property
    def symmetric_weights(self) -> bool:
        """Whether the zero point of weights stored alone is fixed; unsigned types have one that fits, unless told."""
        if ELEMENTS[self.weights].floating:
            return True
        if self.weight_formula is not None:
            return FORMULAS[self.weight_formula].symmetric
        return not self.weights.startswith("uint")

    @property
    def multiplies_integers(self) -> bool:
        """Whether some integer kernel multiplies these types, so that biases become int32 on their scales."""
        return {self.weights, self.activations} <= KERNEL_TYPES

    @property
    def opset(self) -> int:
        """The least ai.onnx opset of the chosen form (SPEC 1.1; DynamicQuantizeLinear is 11).

        Static plans let data movers run on 8-bit integers, which MaxPool, ReduceMax and others take from 12 on.
        """
        needed = [
            required_opset(each.weights, per_axis=each.axis_scales, per_block=each.block_size > 0) for each in self.all
        ]
        if self.mode is Mode.STATIC:
            return max(*needed, *(ELEMENTS[each.activations].opset for each in self.all), PER_AXIS_OPSET)
        return max(*needed, 11) if self.mode is Mode.DYNAMIC else max(needed)

    @property
    def all(self) -> tuple[Settings, ...]:
        """These settings and what rules make of them."""
        return (self, *self.variants)


def resolve(recipe: Recipe, target: Target, mode: Mode) -> Settings:
    """Fill in what the recipe leaves open. Raises OptionError for types that no written form holds."""
    weights = recipe.weights or ("int8" if mode is not Mode.STATIC else target.weights)
    activations = recipe.activations or target.activations
    if mode is Mode.STATIC and ELEMENTS[activations].floating:
        _refuse_uneven_steps(recipe, activations)
    if mode is Mode.WEIGHT_ONLY:
        _refuse_weight_formula(recipe, weights)
    if mode is Mode.DYNAMIC and weights not in KERNEL_TYPES:
        raise OptionError(
            "impossible-pair",
            f"dynamic mode multiplies 8-bit integers; {weights} weights do not fit",
            where="--weights",
            fix="Use --weights int8 or uint8, or --mode weight-only.",
        )
    form = recipe.format or Format.QDQ
    _refuse_rules(recipe, mode, form, activations)
    if form is Format.QOPERATOR and (activations, weights) == ("int8", "uint8"):
        raise OptionError(
            "impossible-pair",
            "QOperator format has no operator for int8 activations with uint8 weights",
            where="--activations, --weights",
            fix="Use int8 weights, or uint8 activations.",
        )
    narrow = ELEMENTS[weights].bits < 8
    axis, block = _granularity(recipe.granularity, narrow=narrow)
    own_type = recipe.weights is None or recipe.weights == target.weights
    bits = target.weight_bits if own_type and ELEMENTS[weights].bits == 8 else ELEMENTS[weights].bits
    settings = Settings(
        mode=mode,
        format=form,
        activations=activations,
        weights=weights,
        weight_bits=bits if mode is not Mode.WEIGHT_ONLY else ELEMENTS[weights].bits,
        axis_scales=axis,
        block_size=block,
        formula=formula_for(activations, recipe.formula),
        weight_formula=recipe.formula if mode is Mode.WEIGHT_ONLY else None,
        plain_weights=recipe.format is Format.QDQ and mode is Mode.WEIGHT_ONLY,
        reference=weights in target.reference_weights
        or (mode is Mode.STATIC and activations in target.reference_activations),
    )
    variants = tuple(with_rule(settings, rule, target) for rule in recipe.rules if rule.sets_types)
    return replace(settings, variants=variants, reference=any(each.reference for each in (settings, *variants)))


def with_rule(settings: Settings, rule: Rule, target: Target) -> Settings:
    """What a rule makes of settings at the nodes that it matches."""
    changes: dict[str, Any] = {}
    if rule.activations not in (None, FLOAT):
        lacking = settings.mode is Mode.STATIC and rule.activations in target.reference_activations
        changes |= {"activations": rule.activations, "reference": settings.reference or lacking}
    if rule.weights is not None:
        bits = ELEMENTS[rule.weights].bits
        own = rule.weights == target.weights and settings.mode is not Mode.WEIGHT_ONLY
        changes |= {"weights": rule.weights, "weight_bits": target.weight_bits if own else bits}
        changes["reference"] = changes.get("reference", settings.reference) or rule.weights in target.reference_weights
    if rule.weights is not None or rule.granularity is not None:
        narrow = rule.weights is not None and ELEMENTS[rule.weights].bits < 8
        changes["axis_scales"], changes["block_size"] = _granularity(rule.granularity, narrow=narrow)
    return replace(settings, **changes)


def _granularity(text: str | None, *, narrow: bool) -> tuple[bool, int]:
    if text is None:
        return (False, 32) if narrow else (True, 0)
    if text.startswith("block:"):
        return False, int(text.removeprefix("block:"))
    return text == "channel", 0


def _refuse_rules(recipe: Recipe, mode: Mode, form: Format, activations: str) -> None:
    """Rules that the mode and the format do not have, and floating codes beside integers.

    Floating codes need a formula and a calibrator of their own, which are the whole model's.
    """
    unplanned = Mode.AUTO if mode is Mode.DYNAMIC and recipe.mode is Mode.AUTO else mode
    for error in impossible_rules(recipe.rules, mode=unplanned, form=form if mode is Mode.STATIC else None):
        raise error
    for position, rule in enumerate(recipe.rules, start=1):
        named = rule.activations
        if named in (None, FLOAT, activations) or mode is not Mode.STATIC:
            continue
        if ELEMENTS[named].floating or ELEMENTS[activations].floating:
            raise OptionError(
                "impossible-pair",
                f"Rule {position} sets activations {named} beside {activations}: floating codes need another formula",
                where=f"rules: rule {position}",
                fix='Use an integer type or "float" in the rule, or one floating type for the whole model.',
            )


def _refuse_weight_formula(recipe: Recipe, weights: str) -> None:
    """Weights alone have the formulas of ONNX; floating codes have no zero point."""
    if recipe.formula is None or recipe.formula in _WEIGHT_FORMULAS[ELEMENTS[weights].floating]:
        return
    allowed = " or ".join(_WEIGHT_FORMULAS[ELEMENTS[weights].floating])
    raise OptionError(
        "impossible-pair",
        f"--formula {recipe.formula} does not go with {weights} weights alone",
        where="--formula, --weights",
        fix=f"Use --formula {allowed}, or leave it out.",
    )


def _refuse_uneven_steps(recipe: Recipe, activations: str) -> None:
    """Floating codes have no zero point, no smallest code to leave out, and steps that grow."""
    if recipe.formula is not None and not FORMULAS[recipe.formula].symmetric:
        name, given, because = "--formula", str(recipe.formula), "has a zero point"
    elif recipe.narrow_range:
        name, given, because = "--narrow-range", "", "drops a code of an integer type"
    elif recipe.calibrator in _EVEN_STEPS:
        name, given, because = "--calibrator", str(recipe.calibrator), "reckons with equal steps"
    else:
        return
    raise OptionError(
        "impossible-pair",
        f"{f'{name} {given}'.rstrip()} does not go with --activations {activations}: it {because}",
        where=f"{name}, --activations",
        fix=f"Leave out {name}, or use integer activations.",
    )
