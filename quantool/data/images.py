"""Folders of images, prepared as the preset says. Pillow is the extra `images`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from quantool.data.folder import visible
from quantool.data.spec import DataOptions, InputSpec, RawFeed, RawFeeds, single_input
from quantool.errors import DataError, OptionError
from quantool.schema import AnyArray

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How pixels become the input: (pixels / divisor - mean) / std, mean and std by channel or for all.

    Attributes:
        divisor: what the pixels 0 to 255 are divided by first.
        mean: subtracted, in the order of the channels.
        std: divided by, in the order of the channels.
        reversed_channels: blue first.
        keep: share of the shorter side that the centre crop keeps; None stretches the image instead.
    """

    divisor: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    reversed_channels: bool = False
    keep: float | None = None


# imagenet: torchvision's reference transform; caffe: Simonyan and Zisserman's means, arXiv:1409.1556, as Caffe's
# model zoo distributes them.
PRESETS: Final = MappingProxyType(
    {
        "imagenet": Preset(divisor=255.0, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), keep=0.875),
        "0-1": Preset(divisor=255.0),
        "-1-1": Preset(divisor=127.5, mean=(1.0,)),
        "caffe": Preset(divisor=1.0, mean=(103.939, 116.779, 123.68), reversed_channels=True, keep=0.875),
    }
)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The image that the input takes."""

    height: int
    width: int
    channels: int
    channels_last: bool


def read_images(folder: Path, inputs: tuple[InputSpec, ...], options: DataOptions) -> RawFeeds:
    """Each image is a row of the model's one image input; a fixed batch or --batch-size stacks several.

    Raises:
        DataError: the input is no image of a fixed size, the preset does not fit, Pillow is missing, or a file is
            no readable image.
        OptionError: unknown preset, or none for a float input.
    """
    spec = single_input(inputs, where=str(folder), kind="a folder of images")
    frame = _frame(spec)
    preset = _preset(spec, frame, options)
    _require_pillow(folder)
    files = visible(folder, IMAGE_SUFFIXES)
    rows = spec.batch or options.batch_size or 1

    def read() -> Iterator[RawFeed]:
        for start in range(0, len(files) // rows * rows, rows):
            group = files[start : start + rows]
            yield group[0].name, partial(_stacked, spec.name, group, frame, preset)

    how = f", preprocess {options.preprocess}" if preset is not None else ""
    rest = f"; the last {len(files) % rows} fill no feed and are left out" if len(files) % rows else ""
    return RawFeeds(description=f"{folder} ({len(files)} images{how}{rest})", read=read)


def _stacked(name: str, files: list[Path], frame: _Frame, preset: Preset | None) -> dict[str, AnyArray]:
    return {name: np.stack([_prepared(path, frame, preset) for path in files])}


def _frame(spec: InputSpec) -> _Frame:
    match spec.shape:
        case (_, 1 | 3 as channels, int(height), int(width)):
            return _Frame(height, width, channels, False)
        case (_, int(height), int(width), 1 | 3 as channels):
            return _Frame(height, width, channels, True)
    raise DataError(
        "no-image-input",
        f"input '{spec.name}' takes {spec.takes}, which is no image of a fixed size with 1 or 3 channels",
        where=f"input '{spec.name}'",
        fix="Prepare the images yourself and give an .npz file or a folder of .npy files.",
    )


def _preset(spec: InputSpec, frame: _Frame, options: DataOptions) -> Preset | None:
    if spec.dtype == "uint8":
        return None
    known = ", ".join(PRESETS)
    preset = PRESETS.get(options.preprocess or "")
    if preset is None:
        given = f"is '{options.preprocess}'" if options.preprocess else "is missing"
        raise OptionError(
            "preprocess",
            f"--preprocess {given}, and a folder of images needs it for input '{spec.name}', {spec.takes}",
            where="--preprocess",
            fix=f"Use what the model was trained with: {known}.",
        )
    if len(preset.mean) not in (1, frame.channels):
        raise DataError(
            "preprocess",
            f"--preprocess {options.preprocess} needs 3 channels, and input '{spec.name}' has {frame.channels}",
            where=f"input '{spec.name}'",
            fix="Use --preprocess 0-1 or -1-1.",
        )
    return preset


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


def _prepared(path: Path, frame: _Frame, preset: Preset | None) -> AnyArray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            fitted = _fitted(image.convert("L" if frame.channels == 1 else "RGB"), frame, preset)
            pixels = np.asarray(fitted, np.uint8).reshape(frame.height, frame.width, frame.channels)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            "data-unreadable", f"the file is no readable image: {error}", where=str(path), fix="Remove or replace it."
        ) from error
    result: AnyArray = pixels
    if preset is not None:
        ordered = pixels[..., ::-1] if preset.reversed_channels else pixels
        scaled = ordered.astype(np.float64) / preset.divisor
        result = ((scaled - np.array(preset.mean)) / np.array(preset.std)).astype(np.float32)
    return result if frame.channels_last else np.ascontiguousarray(result.transpose(2, 0, 1))


def _fitted(image: Image, frame: _Frame, preset: Preset | None) -> Image:
    """Resized to the input's size: stretched, or scaled and cropped around the centre."""
    from PIL.Image import Resampling

    size = (frame.width, frame.height)
    if preset is None or preset.keep is None:
        return image.resize(size, Resampling.BILINEAR)
    # The box of the input's proportions inside the image, shrunk to the share that is kept.
    shrink = min(image.width / frame.width, image.height / frame.height) * preset.keep
    half = (frame.width * shrink / 2, frame.height * shrink / 2)
    middle = (image.width / 2, image.height / 2)
    box = (middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1])
    return image.resize(size, Resampling.BILINEAR, box=box)
