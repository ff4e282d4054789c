"""What --preprocess says: a preset, or a list of key=value, and both are one thing."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from quantool.errors import OptionError

Size = tuple[int, int]
LETTERBOX: Final = "letterbox"
_PAD: Final = 114


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """How an image becomes an input: fitted to the input's size, then (pixels / scale - mean) / std.

    Attributes:
        resize: the length of the shorter side; height and width to stretch to; "letterbox" to scale to fit and pad;
            None stretches to the input's size, unless something is cropped.
        crop: height and width of the centre that stays, or its share of the shorter side; None: the input's size.
        pad: the value of the pixels that a letterbox adds; None is 114.
        size: height and width where the input leaves them open.
        scale: what the pixels 0 to 255 are divided by first.
        mean: subtracted, for all channels or each, in the order in which they are fed.
        std: divided by, likewise.
        layout: where the channels stand; None reads it off the input's shape.
        channels: their order.
    """

    resize: int | Size | Literal["letterbox"] | None = None
    crop: Size | float | None = None
    pad: int | None = None
    size: Size | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Literal["nchw", "nhwc"] | None = None
    channels: Literal["rgb", "bgr"] = "rgb"

    @property
    def border(self) -> int:
        """The value of the pixels that a letterbox adds."""
        return _PAD if self.pad is None else self.pad

    @property
    def explicit_sizes(self) -> dict[str, Size]:
        """The height and width that come out, by the key that says so."""
        sizes = {"size": self.size, "crop": self.crop, "resize": None if self.crop else self.resize}
        return {key: size for key, size in sizes.items() if isinstance(size, tuple)}


# imagenet: torchvision's reference transform; caffe: Simonyan and Zisserman's means, arXiv:1409.1556, as Caffe's
# model zoo distributes them; yolo-letterbox: Ultralytics' LetterBox.
PRESETS: Final = MappingProxyType(
    {
        "imagenet": Preprocess(crop=0.875, scale=255.0, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        "0-1": Preprocess(scale=255.0),
        "-1-1": Preprocess(scale=127.5, mean=(1.0,)),
        "caffe": Preprocess(crop=0.875, mean=(103.939, 116.779, 123.68), channels="bgr"),
        "yolo-letterbox": Preprocess(resize=LETTERBOX, pad=_PAD, scale=255.0),
    }
)


def parse_preprocess(text: str) -> Preprocess:
    """What ``PRESET``, ``KEY=VALUE,...`` or ``PRESET,KEY=VALUE,...`` says; what is given replaces the preset's.

    Raises:
        OptionError: an unknown preset, key or value, with the nearest known; a key given twice; a contradiction.
    """
    items = [item.strip() for item in text.split(",")]
    base = Preprocess() if "=" in items[0] else PRESETS[_known(items.pop(0), PRESETS, "preset", text)]
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = (part.strip() for part in item.partition("="))
        _known(key, _KEYS, "key", text)
        if key in values:
            raise _refused(text, f"gives {key} twice", "Give it once.")
        takes, read = _KEYS[key]
        try:
            values[key] = read(value)
        except ValueError as error:
            near = difflib.get_close_matches(value, takes.split("|"), n=1)
            hint = f"Did you mean {key}={near[0]}? " if near else ""
            raise _refused(text, f"has {key}={value}", f"{hint}Give {key}={takes}.") from error
    result = replace(base, **values)
    _refuse_contradictions(text, result)
    return result


def _refuse_contradictions(text: str, how: Preprocess) -> None:
    if how.resize == LETTERBOX and how.crop is not None:
        raise _refused(text, "crops what a letterbox fits as a whole", "Leave one of resize and crop out.")
    if isinstance(how.crop, float) and how.resize is not None:
        raise _refused(text, "both resizes and crops a share", "Give crop=N or crop=HxW after resize.")
    if how.pad is not None and how.resize != LETTERBOX:
        raise _refused(text, "pads without a letterbox", "Add resize=letterbox, or leave pad out.")
    for key, size in how.explicit_sizes.items():
        for other, another in how.explicit_sizes.items():
            if size != another:
                what = f"says both {key}={size[0]}x{size[1]} and {other}={another[0]}x{another[1]}"
                raise _refused(text, what, "Leave one of them out.")


def _known(word: str, known: Iterable[str], kind: str, text: str) -> str:
    if word in known:
        return word
    near = difflib.get_close_matches(word, list(known), n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise _refused(text, f"has an unknown {kind} '{word}'", f"{hint}Known: {', '.join(known)}.")


def _refused(text: str, what: str, fix: str) -> OptionError:
    return OptionError("preprocess", f"--preprocess {text} {what}", where="--preprocess", fix=fix)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _size(text: str) -> Size:
    height, cross, width = text.partition("x")
    return (_whole(height), _whole(width if cross else height))


def _resize(text: str) -> int | Size | str:
    if text == LETTERBOX:
        return text
    return _size(text) if "x" in text else _whole(text)


def _crop(text: str) -> Size | float:
    if not text.endswith("%"):
        return _size(text)
    share = _positive(text.removesuffix("%")) / 100
    if share > 1:
        raise ValueError(text)
    return share


def _pad(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 255:
        raise ValueError(text)
    return number


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise ValueError(text)
    return number


def _each(read: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """One number for all channels, or one for each, with slashes between."""

    def numbers(text: str) -> tuple[float, ...]:
        found = tuple(map(read, text.split("/")))
        if len(found) not in (1, 3):
            raise ValueError(text)
        return found

    return numbers


def _one_of(*words: str) -> Callable[[str], str]:
    def word(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return word


# Each key's values as errors state them, and what reads one.
_KEYS: Final[MappingProxyType[str, tuple[str, Callable[[str], object]]]] = MappingProxyType(
    {
        "resize": ("N|HxW|letterbox", _resize),
        "crop": ("N|HxW|P%", _crop),
        "pad": ("0..255", _pad),
        "size": ("N|HxW", _size),
        "scale": ("X, above 0", _positive),
        "mean": ("X or X/Y/Z", _each(_number)),
        "std": ("X or X/Y/Z, above 0", _each(_positive)),
        "layout": ("nchw|nhwc", _one_of("nchw", "nhwc")),
        "channels": ("rgb|bgr", _one_of("rgb", "bgr")),
    }
)
