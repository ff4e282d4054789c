"""tensor: one formula on one array, to check by hand what a scale does."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import ml_dtypes
import numpy as np

from quantool.data.archive import row_readers
from quantool.elements import ELEMENTS
from quantool.errors import DataError, OptionError
from quantool.graph.destination import refuse_overwrite, unwritable
from quantool.graph.temporary import TemporaryFile
from quantool.kernels.dtypes import Array
from quantool.kernels.metrics import sqnr_db
from quantool.pipeline.tensors.tensor_forms import FORMS, Coded, Form
from quantool.pipeline.tensors.tensor_parameters import Solved, Task, spread
from quantool.report.model import OutputInfo
from quantool.requests import TensorParameter, TensorRequest, TensorResult
from quantool.schema import Note
from quantool.values import nearest

#: what a kernel's message begins with -> the option that it is about
_ABOUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "T": "--type", "dtype": "--type", "output_dtype": "--type", "qmin": "--type", "zero_point": "--zero-point",
        "y_zero_point": "--zero-point", "x_zero_point": "--zero-point", "scale": "--scale", "y_scale": "--scale",
        "x_scale": "--scale", "the": "--scale", "min_range": "--range", "max_range": "--range", "range": "--range",
        "axis": "--axis", "block_size": "--block-size", "round_mode": "--round-mode", "opset": "--opset",
        "feature_level": "--feature-level", "ensure_minimum_range": "--ensure-minimum-range",
    }
)  # fmt: skip
#: what has no meaning where the scale is given
_OF_RANGES: Final = ("bounds", "narrow_range", "ensure_minimum_range")
_FLAGS: Final = MappingProxyType({"bounds": "--range"})
#: ONNX's own axis
_DEFAULT_AXIS: Final = 1

Numbers = float | tuple[float, ...]


def tensor(request: TensorRequest) -> TensorResult:
    """Quantize an array by a formula, or with `dequantize` go back, and write the result where asked.

    Raises OptionError for what does not go together or what the formula refuses, DataError for files.
    """
    form = _checked(request)
    if request.output is not None:
        refuse_overwrite(request.output, reads=[request.input, *_files(request)], force=request.force)
    notes: list[Note] = []
    with _refusals(request):
        codes_type = form.codes(request.dtype)
        given = _read(request.input)
        task = _task(request, given.ndim)
        if request.dequantize:
            values, found = None, form.dequantize(_as_codes(given, codes_type, request), task)
        else:
            values = _as_values(given, request, notes)
            found = form.quantize(values, task)
        clipped = None if values is None else _clipped_share(values, found, task)
    sqnr = None if values is None else sqnr_db(values, found.real)
    if request.narrow_range and request.formula in ("tf-min-first", "tf-min-combined"):
        notes.append(_ignored_narrow_range(request.formula))
    stored = _storable(found.real if values is None else found.codes)
    solved = found.solved
    return TensorResult(
        formula=request.formula,
        dtype=request.dtype,
        input_path=str(request.input),
        input_dtype=str(given.dtype if values is None else values.dtype),
        shape=given.shape,
        output=None if request.output is None else _write(request.output, stored, force=request.force),
        stored_as=_stored_as(found.real if values is None else found.codes, stored),
        scale=_numbers(solved.scale),
        scale_factor=_numbers(_reciprocals(solved.scale)),
        zero_point=_whole_numbers(solved.zero_point),
        residual_shift=solved.residual_shift,
        range=(_numbers(solved.used[0]), _numbers(solved.used[1])),
        reach=(_numbers(solved.reach[0]), _numbers(solved.reach[1])),
        sqnr_db=None if sqnr is None or not np.isfinite(sqnr) else sqnr,
        exact=sqnr == np.inf,
        clipped_share=clipped,
        opset=found.opset,
        feature_level=found.feature_level,
        expanded_bytes=found.expanded_bytes,
        warnings=tuple(notes),
    )


# --- what was asked -------------------------------------------------------------------------------------


def _checked(request: TensorRequest) -> Form:
    """The form of the formula. Raises OptionError for options that do not go together."""
    form = FORMS.get(request.formula)
    if form is None:
        what, fix = f"Unknown formula '{request.formula}'", nearest(request.formula, FORMS)
        raise OptionError("bad-value", what, where="--formula", fix=fix)
    for name in form.refused:
        if getattr(request, name) is not None:
            raise _pair(name, f"--formula {request.formula}", "the formula has no such parameter")
    if request.round_mode is not None and request.round_mode not in form.round_modes:
        raise _pair("round_mode", f"--formula {request.formula}", f"it rounds {' or '.join(form.round_modes)}")
    if request.scale is not None:
        for name in _OF_RANGES:
            if getattr(request, name):
                raise _pair(name, "--scale", "a given scale needs no range")
    elif request.zero_point is not None:
        what, fix = "--zero-point needs its scale", "Add --scale, or leave out --zero-point."
        raise OptionError("missing-option", what, where="--zero-point", fix=fix)
    return form


def _pair(name: str, other: str, because: str) -> OptionError:
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    what, fix = f"{flag} does not go with {other}: {because}", f"Leave out {flag} or {other}."
    return OptionError("impossible-pair", what, where=flag, fix=fix)


def _files(request: TensorRequest) -> list[Path]:
    parameters = (request.scale, request.zero_point, *(request.bounds or ()))
    return [part for part in parameters if isinstance(part, Path)]


def _task(request: TensorRequest, rank: int) -> Task:
    """The request with its parameter files read and its axis counted from the front."""
    bounds, axis = request.bounds, request.axis
    if axis is None and request.block_size is not None:
        axis = _DEFAULT_AXIS
    if axis is not None and not -rank <= axis < rank:
        raise ValueError(f"axis is {axis}; for an array of rank {rank} it must be from {-rank} to {rank - 1}.")
    if request.block_size is not None and request.block_size < 1:
        raise ValueError(f"block_size is {request.block_size}; it must be 1 or more.")
    return Task(
        formula=request.formula,
        dtype=request.dtype,
        bounds=None if bounds is None else (_bound(bounds[0]), _bound(bounds[1])),
        scale=None if request.scale is None else _parameter(request.scale),
        zero_point=None if request.zero_point is None else _parameter(request.zero_point),
        axis=None if axis is None else axis % rank,
        block_size=request.block_size or 0,
        round_mode=request.round_mode,
        narrow_range=request.narrow_range,
        ensure_minimum_range=request.ensure_minimum_range,
        feature_level=request.feature_level,
        opset=request.opset,
    )


def _bound(given: TensorParameter) -> Array:
    with np.errstate(over="ignore"):
        return _parameter(given).astype(np.float32)


def _parameter(given: TensorParameter) -> Array:
    """A number as an array without axes, or what a file holds."""
    return _read(given) if isinstance(given, Path) else np.asarray(given, np.float64)


@contextmanager
def _refusals(request: TensorRequest) -> Iterator[None]:
    """What the kernels refuse, as an error of the option that it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        what = str(error)
        raise OptionError(
            "formula-refuses",
            what,
            where=_ABOUT.get(what.split(" ", 1)[0], str(request.input)),
            fix=f"Give what {request.formula} takes: see 'quantool tensor --help'.",
        ) from error


# --- files ----------------------------------------------------------------------------------------------


def _read(path: Path) -> Array:
    """The array of a .npy file."""
    if path.suffix.lower() != ".npy":
        raise DataError(
            "no-npy-file",
            f"'{path}' is not called .npy",
            where=str(path),
            fix="Write the array with np.save(path, array).",
        )
    with row_readers(path, ("",)) as readers:
        return readers[""].all()


def _as_values(given: Array, request: TensorRequest, notes: list[Note]) -> Array:
    """Values that a formula takes: NumPy stores bfloat16 as 2-byte blanks, and float64 becomes float32."""
    if given.dtype == np.dtype("V2"):
        return given.view(ml_dtypes.bfloat16)
    if given.dtype != np.float64:
        return given
    what = "the array holds float64, which no quantization operator takes: it was rounded to float32"
    notes.append(Note(code="cast-to-float32", what=what, where=str(request.input), fix="Save it as float32."))
    with np.errstate(over="ignore"):
        return given.astype(np.float32)


def _as_codes(given: Array, wanted: np.dtype[np.generic], request: TensorRequest) -> Array:
    """Codes as `_storable` writes them, or as NumPy itself saves such an array."""
    if given.dtype == wanted:
        return given
    element = ELEMENTS.get(request.dtype)
    if given.dtype == np.dtype(f"V{wanted.itemsize}"):
        return given.view(wanted)
    if element is not None and element.floating and given.dtype == np.uint8:
        return given.view(wanted)
    if element is not None and element.bits < 8 and given.dtype.kind in "iu":
        codes = given.astype(wanted)
        if np.array_equal(codes.astype(given.dtype), given):
            return codes
    raise DataError(
        "other-codes",
        f"the array holds {given.dtype}, or values that are no codes of {request.dtype}",
        where=str(request.input),
        fix="Give what quantizing wrote, and its --type.",
    )


def _storable(array: Array) -> Array:
    """An array in a type that every reader of .npy knows: narrow integers in 8 bits, small floats as bit patterns."""
    if array.dtype == ml_dtypes.bfloat16:
        return array.astype(np.float32)
    element = ELEMENTS.get(str(array.dtype))
    if element is None or (not element.floating and element.bits >= 8):
        return array
    if element.floating:
        return array.view(np.uint8)
    return array.astype(np.uint8 if str(array.dtype).startswith("u") else np.int8)


def _stored_as(array: Array, stored: Array) -> str:
    """The type in the file, in words."""
    element = ELEMENTS.get(str(array.dtype))
    return f"{stored.dtype} bit patterns" if element is not None and element.floating else str(stored.dtype)


def _write(path: Path, array: Array, *, force: bool) -> OutputInfo:
    """Publish a .npy file whole or not at all."""
    try:
        temporary = TemporaryFile(path.parent, path.name)
        try:
            np.lib.format.write_array(temporary.file, array, allow_pickle=False)
            size = temporary.file.tell()
            temporary.file.seek(0)
            digest = hashlib.file_digest(temporary.file, "sha256").hexdigest()
            temporary.publish(path.name, replace=force)
        finally:
            temporary.discard()
    except OSError as error:
        raise unwritable(path, error) from error
    return OutputInfo(path=str(path), sha256=digest, size_bytes=size)


# --- figures --------------------------------------------------------------------------------------------


def _clipped_share(values: Array, found: Coded, task: Task) -> float:
    """The fraction of values that saturation changed: beyond the last code's rounding."""
    solved = found.solved
    lo, hi, half = (_spread(part, values.shape, task) for part in (*solved.reach, _half_step(solved, task)))
    outside = np.count_nonzero((values < lo - half) | (values > hi + half))
    return outside / values.size if values.size else 0.0


def _half_step(solved: Solved, task: Task) -> Array:
    """Half of the step below the largest code."""
    element, half = ELEMENTS.get(task.dtype), 0.5
    if element is not None and element.largest is not None:
        info = ml_dtypes.finfo(np.dtype(task.dtype))  # type: ignore[no-untyped-call]  # ml_dtypes carries no annotations
        half = 2.0 ** (math.floor(math.log2(element.largest)) - info.nmant - 1)
    return np.abs(solved.scale.astype(np.float64)) * half


def _spread(part: Array, shape: tuple[int, ...], task: Task) -> Array:
    return spread(part, shape, axis=task.axis, block_size=task.block_size)


def _reciprocals(scale: Array) -> Array:
    """What values are multiplied by, as TensorFlow tells it."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1.0 / scale.astype(np.float64)).astype(np.float32)


def _numbers(values: Array) -> Numbers:
    wide = values.astype(np.float64)
    return float(wide.reshape(())) if wide.size == 1 else tuple(wide.ravel().tolist())


def _whole_numbers(values: Array) -> int | tuple[int, ...]:
    """Zero points; those of floating codes are zero."""
    found = _numbers(values)
    return int(found) if isinstance(found, float) else tuple(map(int, found))


def _ignored_narrow_range(formula: str) -> Note:
    return Note(
        code="option-ignored",
        what=f"{formula} ignores narrow_range, as TensorFlow does outside SCALED",
        where="--narrow-range",
        fix="Leave it out, or use --formula tf-scaled.",
    )
