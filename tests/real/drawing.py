"""Text drawn as a camera or scanner would see it: lines and pages, with paper, ink, noise and blur."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from tests.real import text
from tests.real.boxes import Box

FONTS = Path("/usr/share/fonts/truetype/dejavu")
FONT_FILES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSansMono.ttf",
)
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A drawn page and the box (left, top, right, bottom) of each of its lines, in pixels."""

    image: Image.Image
    boxes: tuple[Box, ...]


@functools.cache
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout engine is always there; the other one gives other pixels where it is installed.
    return ImageFont.truetype(str(FONTS / file), size, layout_engine=ImageFont.Layout.BASIC)


def _random_font(rng: np.random.Generator, size: int) -> ImageFont.FreeTypeFont:
    return _font(FONT_FILES[int(rng.integers(len(FONT_FILES)))], size)


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return paper and ink; one drawing in five is light on dark."""
    paper, ink = rng.integers(170, 256, 3), rng.integers(0, 90, 3)
    if rng.random() < 0.2:
        paper, ink = ink, paper
    return tuple(int(x) for x in paper), tuple(int(x) for x in ink)


def _weather(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Add what a camera adds: blur, noise and a slope of light."""
    image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0, 0.9))))
    pixels = np.asarray(image, np.float32)
    light = np.linspace(rng.uniform(0.8, 1.0), 1.0, pixels.shape[1], dtype=np.float32)[None, :, None]
    noise = rng.normal(0.0, rng.uniform(1.0, 10.0), pixels.shape).astype(np.float32)
    return Image.fromarray(np.clip(np.rint(pixels * light + noise), 0, 255).astype(np.uint8))


def line(rng: np.random.Generator, words: str) -> Image.Image:
    """Draw one upright line of text, slightly tilted, cut out with a margin as a text detector cuts it."""
    size = int(rng.integers(20, 44))
    font = _random_font(rng, size)
    paper, ink = _colours(rng)
    left, top, right, bottom = font.getbbox(words)
    margin = int(rng.integers(2, 8))
    image = Image.new("RGB", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), paper)
    ImageDraw.Draw(image).text((margin - left, margin - top), words, fill=ink, font=font)
    image = image.rotate(float(rng.uniform(-2.0, 2.0)), Image.Resampling.BILINEAR, fillcolor=paper)
    return _weather(rng, image)


def page(rng: np.random.Generator, documents: tuple[str, ...], *, width: int, height: int) -> Page:
    """Draw an upright page of well separated lines of one to five words."""
    paper, ink = _colours(rng)
    image = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(image)
    boxes: list[Box] = []
    y = int(rng.integers(8, 24))
    while True:
        size = int(rng.integers(14, 30))
        font = _random_font(rng, size)
        words = text.phrase(rng, documents, count=int(rng.integers(1, 6)))
        while draw.textlength(words, font=font) > width - 40 and " " in words:
            words = words.rsplit(" ", 1)[0]
        spare = max(width - 24 - int(draw.textlength(words, font=font)), 13)
        origin = (12 + int(rng.integers(0, min(spare, 80))), y)
        box = draw.textbbox(origin, words, font=font)
        if box[3] > height - 8:
            break
        draw.text(origin, words, fill=ink, font=font)
        # Detectors are trained on boxes that people drew: around the ink with some air.
        air = 0.15 * size
        boxes.append((box[0] - air, box[1] - air, box[2] + air, box[3] + air))
        y = int(box[3]) + int(size * rng.uniform(0.6, 1.6))
    return Page(image=_weather(rng, image), boxes=tuple(boxes))


def layout(
    rng: np.random.Generator, documents: tuple[str, ...], *, width: int, height: int
) -> tuple[Image.Image, tuple[tuple[str, Box], ...]]:
    """Draw a white page of titles, paragraphs and figures; return it with (kind, box) of each."""
    image = Image.new("RGB", (width, height), (255, 255, 255))
    parts: list[tuple[str, Box]] = []
    y = int(rng.integers(30, 50))
    while y < height - 60:
        kind = ("title", "text", "text", "text", "figure")[int(rng.integers(5))]
        box = PARTS[kind](rng, image, y, documents)
        parts.append((kind, box))
        y = int(box[3]) + int(rng.integers(14, 24))
    return image, tuple(parts)


def _title(rng: np.random.Generator, image: Image.Image, y: int, documents: tuple[str, ...]) -> Box:
    draw, font = ImageDraw.Draw(image), _font("DejaVuSans-Bold.ttf", int(rng.integers(16, 24)))
    words = _fitting(text.phrase(rng, documents, count=4), font, image.width - 2 * MARGIN)
    draw.text((MARGIN, y), words, fill=0, font=font)
    return draw.textbbox((MARGIN, y), words, font=font)


def _paragraph(rng: np.random.Generator, image: Image.Image, y: int, documents: tuple[str, ...]) -> Box:
    draw, font = ImageDraw.Draw(image), _font("DejaVuSerif.ttf", 11)
    width, right, top = image.width - 2 * MARGIN, 0.0, y
    count = min(int(rng.integers(3, 8)), max((image.height - 30 - y) // LINE, 1))
    for index in range(count):
        limit = width if index < count - 1 else width * 0.6
        words = _fitting(text.phrase(rng, documents, count=20), font, limit)
        draw.text((MARGIN, y), words, fill=0, font=font)
        right = max(right, MARGIN + draw.textlength(words, font=font))
        y += LINE
    return (MARGIN, top, right, y)


def _figure(rng: np.random.Generator, image: Image.Image, y: int, documents: tuple[str, ...]) -> Box:
    width, height = int(rng.integers(200, 400)), min(int(rng.integers(100, 180)), image.height - 20 - y)
    grains = rng.normal(128.0, 60.0, (height // 8 + 1, width // 8 + 1, 3))
    picture = Image.fromarray(np.clip(grains, 0, 255).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    x = int(rng.integers(MARGIN, image.width - MARGIN - width))
    image.paste(picture, (x, y))
    return (x, y, x + width, y + height)


def _fitting(words: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return as many of the words as fit."""
    while font.getlength(words) > width and " " in words:
        words = words.rsplit(" ", 1)[0]
    return words


MARGIN, LINE = 48, 15
PARTS = {"title": _title, "text": _paragraph, "figure": _figure}


def planes(image: Image.Image, mean: NDArray[np.float32], std: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the image as [1,3,H,W], channels in BGR order as OpenCV reads them, normalized per channel."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / np.float32(255.0)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None])
