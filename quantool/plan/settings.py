"""What the recipe leaves to the mode and the target, decided once."""

from __future__ import annotations

from dataclasses import dataclass

from quantool.elements import ELEMENTS, PER_AXIS_OPSET, required_opset
from quantool.errors import OptionError
from quantool.formulas import FORMULAS, formula_for
from quantool.recipe import Calibrator, Recipe
from quantool.schema import Format, Mode
from quantool.targets import Target

#: types that integer kernels multiply; everything else is computed in float
KERNEL_TYPES = frozenset({"int8", "uint8"})
#: they look for the range of least error on evenly spaced codes, which floating types do not have
_EVEN_STEPS = (Calibrator.MSE, Calibrator.ENTROPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved types and forms. axis_scales: a scale for each channel; block_size: 0 unless in blocks.

    reference: the target's runtime cannot run the types; the onnx reference evaluator can.
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

    @property
    def symmetric_activations(self) -> bool:
        """Whether zero is forced to the middle of the grid, so that no Relu is implied by saturation."""
        return FORMULAS[self.formula].symmetric

    @property
    def multiplies_integers(self) -> bool:
        """Whether some integer kernel multiplies these types, so that biases become int32 on their scales."""
        return {self.weights, self.activations} <= KERNEL_TYPES

    @property
    def opset(self) -> int:
        """The least ai.onnx opset of the chosen form (SPEC 1.1; DynamicQuantizeLinear is 11).

        Static plans let data movers run on 8-bit integers, which MaxPool, ReduceMax and others take from 12 on.
        """
        weights = required_opset(self.weights, per_axis=self.axis_scales, per_block=self.block_size > 0)
        if self.mode is Mode.STATIC:
            return max(weights, ELEMENTS[self.activations].opset, PER_AXIS_OPSET)
        return max(weights, 11) if self.mode is Mode.DYNAMIC else weights


def resolve(recipe: Recipe, target: Target, mode: Mode) -> Settings:
    """Fill in what the recipe leaves open. Raises OptionError for types that no written form holds."""
    weights = recipe.weights or ("int8" if mode is not Mode.STATIC else target.weights)
    activations = recipe.activations or target.activations
    if mode is Mode.STATIC and ELEMENTS[activations].floating:
        _refuse_uneven_steps(recipe, activations)
    if mode is Mode.DYNAMIC and weights not in KERNEL_TYPES:
        raise OptionError(
            "impossible-pair",
            f"dynamic mode multiplies 8-bit integers; {weights} weights do not fit",
            where="--weights",
            fix="Use --weights int8 or uint8, or --mode weight-only.",
        )
    form = recipe.format or Format.QDQ
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
    return Settings(
        mode=mode,
        format=form,
        activations=activations,
        weights=weights,
        weight_bits=bits if mode is not Mode.WEIGHT_ONLY else ELEMENTS[weights].bits,
        axis_scales=axis,
        block_size=block,
        formula=formula_for(activations, recipe.formula),
        reference=weights in target.reference_weights
        or (mode is Mode.STATIC and activations in target.reference_activations),
    )


def _granularity(text: str | None, *, narrow: bool) -> tuple[bool, int]:
    if text is None:
        return (False, 32) if narrow else (True, 0)
    if text.startswith("block:"):
        return False, int(text.removeprefix("block:"))
    return text == "channel", 0


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
