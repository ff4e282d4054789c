"""Folders of images, prepared as --preprocess says. Pillow is the extra `images`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quantool.data.folder import visible
from quantool.data.preprocess import LETTERBOX, PRESETS, Preprocess, Size, parse_preprocess
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, one_input
from quantool.errors import DataError, OptionError
from quantool.schema import AnyArray

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

# The axes of channels, height and width.
_LAYOUTS = {"nchw": (1, 2, 3), "nhwc": (3, 1, 2)}


@dataclass(frozen=True, slots=True)
class _Frame:
    """The image that the input takes; pixels: as they are, 0 to 255."""

    height: int
    width: int
    channels: int
    layout: str
    pixels: bool


def read_images(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Each image is a row of the model's one image input; a fixed batch or --batch-size stacks several.

    An input of type uint8 takes pixels: of --preprocess, only what fits and orders them counts.

    Raises:
        DataError: the input is no image of a known size, what is asked for does not fit it, Pillow is missing, or a
            file is no readable image.
        OptionError: an unknown or contradictory --preprocess, or none for a float input.
    """
    spec = one_input(inputs, named=folder.name, where=str(folder), kind="a folder of images")
    how = _how(spec, options)
    frame = _frame(spec, how, f"--preprocess {options.preprocess}")
    _require_pillow(folder)
    files = visible(folder, IMAGE_SUFFIXES)
    rows = spec.batch or options.batch_size or 1

    def read() -> Iterator[RawFeed]:
        for start in range(0, len(files) // rows * rows, rows):
            group = files[start : start + rows]
            yield group[0].name, partial(_stacked, spec.name, group, frame, how)

    said = f", preprocess {options.preprocess}" if options.preprocess else ""
    kept = ", pixels 0 to 255" if said and frame.pixels else ""
    rest = f"; the last {len(files) % rows} fill no feed and are left out" if len(files) % rows else ""
    return RawFeeds(
        description=f"{folder} ({len(files)} images{said}{kept}{rest})",
        read=read,
        names=lambda: frozenset([spec.name]),
        length=len(files) // rows,
        prepared=bool(options.preprocess),
    )


def _how(spec: InputSpec, options: DataOptions) -> Preprocess:
    if options.preprocess:
        return parse_preprocess(options.preprocess)
    if spec.dtype == "uint8":
        return Preprocess()
    raise OptionError(
        "preprocess",
        f"--preprocess is missing, and a folder of images needs it for input '{spec.name}', {spec.takes}",
        where="--preprocess",
        fix=f"Use what the model was trained with: {', '.join(PRESETS)}, or a list: resize=256,crop=224,scale=255.",
    )


def _frame(spec: InputSpec, how: Preprocess, given: str) -> _Frame:
    layout = _layout(spec, how, given)
    channels, height, width = ((spec.shape or ())[axis] for axis in _LAYOUTS[layout])
    key, size = next(iter(how.explicit_sizes.items()), ("", (None, None)))
    for axis, (taken, asked) in enumerate(zip((height, width), size, strict=True)):
        if isinstance(taken, int) and asked not in (None, taken):
            raise DataError(
                "preprocess",
                f"{given} makes images of {'height' if axis == 0 else 'width'} {asked}, and the input takes {taken}",
                where=f"input '{spec.name}', {spec.takes}",
                fix=f"Change {key} to the input's size, or leave it out.",
            )
    height, width = (
        taken if isinstance(taken, int) else asked for taken, asked in zip((height, width), size, strict=True)
    )
    if not isinstance(height, int) or not isinstance(width, int):
        raise _no_image(spec)
    frame = _Frame(height, width, channels if isinstance(channels, int) else 3, layout, spec.dtype == "uint8")
    if not {len(how.mean), len(how.std)} <= {1, frame.channels}:
        raise DataError(
            "preprocess",
            f"{given} needs 3 channels, and input '{spec.name}' has {frame.channels}",
            where=f"input '{spec.name}'",
            fix="Use --preprocess 0-1 or -1-1, or one number for mean and one for std.",
        )
    return frame


def _layout(spec: InputSpec, how: Preprocess, given: str) -> str:
    """Where the channels stand: 1 or 3 of them, or an open size where the layout says so."""
    if spec.shape is None or len(spec.shape) != 4:
        raise _no_image(spec)
    found = [name for name, (axis, _, _) in _LAYOUTS.items() if spec.shape[axis] in (1, 3)]
    if how.layout is not None:
        channels = spec.shape[_LAYOUTS[how.layout][0]]
        if how.layout in found or not (found or isinstance(channels, int)):
            return how.layout
        raise DataError(
            "preprocess",
            f"{given} does not agree with input '{spec.name}', which takes {spec.takes}",
            where=f"input '{spec.name}'",
            fix=f"Leave layout={how.layout} out." if found else "Prepare the images yourself and give an .npz file.",
        )
    if len(found) == 2:
        raise DataError(
            "preprocess",
            f"input '{spec.name}' takes {spec.takes}, which may have its channels first or last",
            where=f"input '{spec.name}'",
            fix="Say which: add layout=nchw or layout=nhwc to --preprocess.",
        )
    if not found:
        raise _no_image(spec)
    return found[0]


def _no_image(spec: InputSpec) -> DataError:
    return DataError(
        "no-image-input",
        f"input '{spec.name}' takes {spec.takes}, which is no image of a fixed size with 1 or 3 channels",
        where=f"input '{spec.name}'",
        fix="Where sizes are open, say them: add size=HxW and layout=nchw to --preprocess. "
        "Else prepare the images yourself and give an .npz file or a folder of .npy files.",
    )


def _require_pillow(folder: Path) -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise DataError(
            "pillow-missing",
            "reading images needs Pillow, which is not installed",
            where=str(folder),
            fix="Install it: pip install 'quantool[images]'.",
        ) from error


def _stacked(name: str, files: list[Path], frame: _Frame, how: Preprocess) -> dict[str, AnyArray]:
    return {name: np.stack([_prepared(path, frame, how) for path in files])}


def _prepared(path: Path, frame: _Frame, how: Preprocess) -> AnyArray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            fitted = _fitted(image.convert("L" if frame.channels == 1 else "RGB"), (frame.height, frame.width), how)
            pixels = np.asarray(fitted, np.uint8).reshape(frame.height, frame.width, frame.channels)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            "data-unreadable", f"the file is no readable image: {error}", where=str(path), fix="Remove or replace it."
        ) from error
    ordered = pixels[..., ::-1] if how.channels == "bgr" else pixels
    result: AnyArray = ordered
    if not frame.pixels:
        scaled = ordered.astype(np.float64) / how.scale
        result = ((scaled - np.array(how.mean)) / np.array(how.std)).astype(np.float32)
    return np.ascontiguousarray(result.transpose(2, 0, 1) if frame.layout == "nchw" else result)


def _fitted(image: Image, size: Size, how: Preprocess) -> Image:
    """The image at the input's height and width."""
    from PIL.Image import Resampling

    height, width = size
    if how.resize == LETTERBOX:
        return _letterboxed(image, size, how.border)
    if isinstance(how.crop, float):
        return image.resize((width, height), Resampling.BILINEAR, box=_middle(image, size, how.crop))
    if how.resize is None and how.crop is None:
        return image.resize((width, height), Resampling.BILINEAR)
    if isinstance(how.resize, tuple):
        image = image.resize(how.resize[::-1], Resampling.BILINEAR)
    elif how.resize is not None:
        shorter = min(image.size)
        image = image.resize([how.resize * side // shorter for side in image.size], Resampling.BILINEAR)
    if image.height < height or image.width < width:
        raise ValueError(f"a crop of {height}x{width} does not fit into its {image.height}x{image.width} pixels")
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _middle(image: Image, size: Size, share: float) -> tuple[float, float, float, float]:
    """The box of the input's proportions inside the image, shrunk to the share that is kept."""
    height, width = size
    shrink = min(image.width / width, image.height / height) * share
    half = (width * shrink / 2, height * shrink / 2)
    middle = (image.width / 2, image.height / 2)
    return (middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1])


def _letterboxed(image: Image, size: Size, border: int) -> Image:
    """Scaled to fit, in the middle of a border; rounded as Ultralytics' LetterBox does."""
    from PIL import Image

    height, width = size
    ratio = min(height / image.height, width / image.width)
    inner = (max(round(image.width * ratio), 1), max(round(image.height * ratio), 1))
    canvas = Image.new(image.mode, (width, height), (border,) * len(image.getbands()))
    place = (round((width - inner[0]) / 2 - 0.1), round((height - inner[1]) / 2 - 0.1))
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), place)
    return canvas
