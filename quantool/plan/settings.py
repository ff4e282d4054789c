"""What the recipe leaves to the mode and the target, decided once."""

from __future__ import annotations

from dataclasses import dataclass

from quantool.elements import ELEMENTS
from quantool.errors import OptionError
from quantool.recipe import Recipe
from quantool.schema import Format, Mode
from quantool.targets import Target

#: types that a written graph can hold here, by what they are for
ACTIVATION_TYPES = ("uint8", "int8", "uint16", "int16")
WEIGHT_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Resolved types and forms. axis_scales: a scale for each channel; block_size: 0 unless in blocks."""

    mode: Mode
    format: Format
    activations: str
    weights: str
    weight_bits: int
    axis_scales: bool
    block_size: int
    formula: str

    @property
    def symmetric_activations(self) -> bool:
        """Whether zero is forced to the middle of the grid, so that no Relu is implied by saturation."""
        return self.formula in ("onnx-symmetric", "tf-scaled")

    @property
    def opset(self) -> int:
        """The least ai.onnx opset of the chosen form (SPEC 1.1; DynamicQuantizeLinear is 11).

        Static plans let data movers run on 8-bit integers, which MaxPool, ReduceMax and others take from 12 on.
        """
        narrow = {"int8", "uint8"}
        if self.block_size or {self.weights, self.activations} - narrow:
            return 21
        if self.mode is Mode.STATIC or self.axis_scales:
            return 13
        return 11 if self.mode is Mode.DYNAMIC else 10


def resolve(recipe: Recipe, target: Target, mode: Mode) -> Settings:
    """Fill in what the recipe leaves open. Raises OptionError for types that no written form holds."""
    weights = recipe.weights or ("int8" if mode is not Mode.STATIC else target.weights)
    activations = recipe.activations or target.activations
    _refuse_type("--weights", weights, WEIGHT_TYPES)
    _refuse_type("--activations", activations, ACTIVATION_TYPES)
    if mode is Mode.DYNAMIC and weights not in ("int8", "uint8"):
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
        formula=recipe.formula or "onnx",
    )


def _granularity(text: str | None, *, narrow: bool) -> tuple[bool, int]:
    if text is None:
        return (False, 32) if narrow else (True, 0)
    if text.startswith("block:"):
        return False, int(text.removeprefix("block:"))
    return text == "channel", 0


def _refuse_type(option: str, dtype: str, known: tuple[str, ...]) -> None:
    if dtype not in known:
        raise OptionError(
            "unsupported-type",
            f"{dtype} cannot be written here",
            where=option,
            fix=f"Use one of: {', '.join(known)}.",
        )
