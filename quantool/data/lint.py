"""Check a feed against what the model takes, before it is used, and cast what may be cast."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  # registers bfloat16 and its kin as NumPy type names
import numpy as np
import numpy.typing as npt

from quantool.data.decoder_inputs import IDS
from quantool.data.labels import Labelled, is_label, labels_in
from quantool.data.spec import InputSpec
from quantool.errors import DataError
from quantool.schema import AnyArray


def checked_feed(
    raw: object, inputs: Sequence[InputSpec], *, sample: str, allow_nonfinite: bool, labels: bool = False
) -> dict[str, AnyArray]:
    """The feed as the model takes it: only its inputs, each of its type and a shape that fits.

    sample: which feed it is, for errors. Keys that start with ``label`` are left out unless inputs have them; with
    `labels` the feed is a Labelled that knows them.

    Raises:
        DataError: an input is missing, unknown, of another type, rank or size, or not finite.
    """
    if not isinstance(raw, Mapping):
        raise DataError(
            "feed-type",
            f"{sample} is a {type(raw).__name__}",
            where=sample,
            fix="Give each feed as a dict from input name to array.",
        )
    known = {spec.name: spec for spec in inputs}
    # Arrays first: of unusable token ids follows no mask, and the ids are what is to be mended.
    feed = {
        name: _checked_array(raw[name], spec, sample=sample, allow_nonfinite=allow_nonfinite)
        for name, spec in known.items()
        if name in raw
    }
    _check_names(raw, known, sample)
    _check_tokens(feed, sample)
    return Labelled(feed, labels_in(raw, known)) if labels else feed


def _check_names(raw: Mapping[str, object], known: Mapping[str, InputSpec], sample: str) -> None:
    unknown = [str(name) for name in raw if name not in known and not is_label(str(name))]
    missing = [spec.name for spec in known.values() if spec.required and spec.name not in raw]
    if not missing and not unknown:
        return
    name = missing[0] if missing else unknown[0]
    near = difflib.get_close_matches(name, unknown if missing else list(known), n=1)
    if not near and missing:
        fitting = [other for other in unknown if _may_be(raw[other], known[name])]
        near = fitting if len(fitting) == 1 else unknown if len(unknown) == 1 else []
    if missing:
        fix = f"Rename '{near[0]}' to '{name}'." if near else f"Add an array {known[name].takes} as '{name}'."
        what = f"{sample} has no array for input '{name}'"
    else:
        hint = f"Rename it to '{near[0]}', or remove it. " if near else "Remove it. "
        fix = f"{hint}The model takes: {', '.join(known)}."
        what = f"{sample} has an array '{name}', which is no input of the model"
    raise DataError("missing-input" if missing else "unknown-input", what, where=f"input '{name}', {sample}", fix=fix)


def _check_tokens(feed: Mapping[str, AnyArray], sample: str) -> None:
    """Without a token a language model computes nothing, and what is empty on both sides would read as equal."""
    if IDS in feed and np.size(feed[IDS]) == 0:
        raise DataError(
            "no-tokens",
            f"{sample} has no token ids",
            where=f"input '{IDS}', {sample}",
            fix="Remove the sample: nothing can be calibrated or compared on it.",
        )


def _may_be(value: object, spec: InputSpec) -> bool:
    """Whether an array under another name has the input's kind of elements and a shape that fits."""
    if not isinstance(value, np.ndarray) or spec.shape is None or spec.dtype in ("", "string"):
        return False
    wanted = np.dtype(spec.dtype)
    same_kind = _is_float(wanted) == _is_float(value.dtype) and (wanted.kind == "b") == (value.dtype.kind == "b")
    return same_kind and _fits(value.shape, spec.shape)


def _checked_array(value: object, spec: InputSpec, *, sample: str, allow_nonfinite: bool) -> AnyArray:
    if not spec.dtype:
        # Sequences and optionals: the runtime checks them.
        return value  # type: ignore[return-value]  # no array at all
    where = f"input '{spec.name}', {sample}"
    array = _as_array(value, spec, where=where)
    _check_shape(array, spec, where=where)
    cast = _cast(array, spec, where=where)
    if cast.dtype.kind in "fV" and not allow_nonfinite:
        _check_finite(cast, array, where=where)
    return cast


def _as_array(value: object, spec: InputSpec, *, where: str) -> AnyArray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: a tensor of another library
        raise DataError("not-an-array", f"the value is no array: {error}", where=where, fix=_give(spec)) from error
    if array.dtype == object and spec.dtype != "string":
        raise DataError(
            "not-an-array",
            f"the value is a {type(value).__name__} of Python objects, not an array of numbers",
            where=where,
            fix=_give(spec),
        )
    return array


def _check_shape(array: AnyArray, spec: InputSpec, *, where: str) -> None:
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        raise DataError(
            "wrong-rank",
            f"the array has shape {_shape(array.shape)}, and the model takes {spec.takes}",
            where=where,
            fix=_rank_fix(array.shape, spec.shape),
        )
    for axis, (size, wanted) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if isinstance(wanted, int) and size != wanted:
            raise DataError(
                "wrong-size",
                f"the array has shape {_shape(array.shape)}, and the model takes {spec.takes}: "
                f"axis {axis} is {size}, not {wanted}",
                where=where,
                fix=_size_fix(array.shape, spec.shape, axis),
            )


def _rank_fix(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> str:
    if _fits((1, *shape), wanted):
        return "Add the batch axis: array[None]."
    if shape[:1] == (1,) and _fits(shape[1:], wanted):
        return "Remove axis 0: array[0]."
    if _fits(shape[1:], wanted):
        return "Give the entries of axis 0 as feeds of their own."
    return f"Give an array of {len(wanted)} axes."


def _size_fix(shape: tuple[int, ...], wanted: tuple[int | str | None, ...], axis: int) -> str:
    for order, name in (((0, 3, 1, 2), "channels last to first"), ((0, 2, 3, 1), "channels first to last")):
        if len(shape) == 4 and _fits(tuple(shape[i] for i in order), wanted):
            return f"Transpose {name}: array.transpose{order}."
    return f"Give an array with {wanted[axis]} along axis {axis}."


def _fits(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(need, int) or size == need for size, need in zip(shape, wanted, strict=True)
    )


def _cast(array: AnyArray, spec: InputSpec, *, where: str) -> AnyArray:
    if spec.dtype == "string":
        return _strings(array, spec, where=where)
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return array
    # NumPy stores bfloat16 and its kin as bytes without a name.
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)
    if _is_float(wanted) and _is_float(array.dtype):
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iu":
        return _narrowed(array, wanted, where=where)
    raise DataError(
        "wrong-type",
        f"the array holds {array.dtype}, and the model takes {spec.dtype}",
        where=where,
        fix=_type_fix(array.dtype, wanted),
    )


def _is_float(dtype: np.dtype[np.generic]) -> bool:
    # ml_dtypes counts as void, with a type of its own.
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _narrowed(array: AnyArray, wanted: np.dtype[np.generic], *, where: str) -> AnyArray:
    limits = np.iinfo(wanted.name)
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise DataError(
                "out-of-range",
                f"the array holds {low if low < limits.min else high}, beyond {wanted} ({limits.min} to {limits.max})",
                where=where,
                fix="Correct the values; they are not wrapped around.",
            )
    return array.astype(wanted)


def _strings(array: AnyArray, spec: InputSpec, *, where: str) -> AnyArray:
    if array.dtype.kind == "U" or (array.dtype == object and all(isinstance(v, str) for v in array.flat)):
        return array
    raise DataError(
        "wrong-type",
        f"the array holds {array.dtype}, and the model takes {spec.dtype}",
        where=where,
        fix="Give an array of str.",
    )


def _type_fix(found: npt.DTypeLike, wanted: np.dtype[np.generic]) -> str:
    if _is_float(wanted):
        return (
            f"Scale the values as in training and give {wanted}: integers would run at a scale "
            "that the model was not trained for."
        )
    return f"Give {wanted}; {found} is not cast to it."


def _check_finite(cast: AnyArray, given: AnyArray, *, where: str) -> None:
    finite = np.isfinite(cast.astype(np.float32, copy=False) if cast.dtype.itemsize < 4 else cast)
    if finite.all():
        return
    at = tuple(int(i) for i in np.argwhere(~finite)[0])
    bad = int(finite.size - np.count_nonzero(finite))
    cause = "" if not np.isfinite(given.astype(np.float64)[at]) else f" after the cast to {cast.dtype}"
    raise DataError(
        "nonfinite",
        f"{bad} of {finite.size} elements are NaN or infinite{cause}, the first at {_shape(at)}",
        where=where,
        fix="Remove or repair the sample, or allow it with --allow-nonfinite.",
    )


def _give(spec: InputSpec) -> str:
    return f"Give an array {spec.takes}."


def _shape(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))})"
