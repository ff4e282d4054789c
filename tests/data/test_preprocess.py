"""--preprocess: presets and lists are one thing, say what comes out, and are refused with the nearest known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantool.data import PRESETS, DataOptions, InputSpec, open_data
from quantool.data.preprocess import parse_preprocess
from quantool.errors import DataError, OptionError

Image = pytest.importorskip("PIL.Image", reason="the extra images")


def image_input(*shape, dtype="float32"):
    return InputSpec(name="image", dtype=dtype, shape=shape)


def written(folder, pixels):
    """A folder with one image of pixels uint8[H, W, 3]."""
    folder.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(folder / "a.png")
    return folder


def fed(folder, preprocess, spec):
    (feed,) = open_data(folder, [spec], DataOptions(preprocess=preprocess))
    return feed["image"][0]


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


LISTS = {
    "imagenet": "crop=87.5%,scale=255,mean=0.485/0.456/0.406,std=0.229/0.224/0.225",
    "0-1": "scale=255",
    "-1-1": "scale=127.5,mean=1",
    "caffe": "crop=87.5%,mean=103.939/116.779/123.68,channels=bgr",
    "yolo-letterbox": "resize=letterbox,pad=114,scale=255",
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_what_its_list_says(preset):
    assert parse_preprocess(preset) == parse_preprocess(LISTS[preset]) == PRESETS[preset]


def test_a_key_replaces_the_presets():
    how = parse_preprocess("imagenet, std = 1 ,channels=bgr")
    assert (how.std, how.channels, how.mean) == ((1.0,), "bgr", PRESETS["imagenet"].mean)
    assert parse_preprocess("imagenet,resize=256,crop=224").crop == (224, 224)


# --- what comes out ------------------------------------------------------------------------------------


def test_mean_and_std_come_after_scale_and_channels_in_the_order_fed(tmp_path):
    pixels = noise(6, 8)
    text = "scale=255,mean=0.1/0.2/0.3,std=0.5/2/4,channels=bgr"
    wanted = ((pixels[..., ::-1] / 255 - [0.1, 0.2, 0.3]) / [0.5, 2, 4]).astype(np.float32)
    assert np.array_equal(fed(written(tmp_path, pixels), text, image_input("N", 6, 8, 3)), wanted)
    assert np.array_equal(fed(tmp_path, text, image_input(1, 3, 6, 8)), wanted.transpose(2, 0, 1))


@given(st.integers(4, 40), st.integers(4, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_crop_is_the_middle_of_the_pixels(tmp_path_factory, height, width, tall, wide, seed):
    pixels = noise(height, width, seed)
    folder = written(tmp_path_factory.mktemp("d"), pixels)
    spec, text = image_input("N", tall, wide, 3), f"crop={tall}x{wide},layout=nhwc"
    if tall > height or wide > width:
        with pytest.raises(DataError, match=rf"crop of {tall}x{wide} does not fit into its {height}x{width} pixels"):
            fed(folder, text, spec)
        return
    top, left = round((height - tall) / 2), round((width - wide) / 2)
    wanted = pixels[top : top + tall, left : left + wide]
    assert np.array_equal(fed(folder, text, spec), wanted)


@given(st.integers(2, 60), st.integers(2, 60), st.integers(2, 32), st.integers(2, 32))
@settings(max_examples=60, deadline=None)
def test_a_letterbox_keeps_proportions_and_pads_with_114(tmp_path_factory, height, width, tall, wide):
    # A white image shows where it lies. The lines below are those of Ultralytics' LetterBox.
    folder = written(tmp_path_factory.mktemp("d"), np.full((height, width, 3), 255, np.uint8))
    found = fed(folder, "yolo-letterbox,layout=nchw", image_input(1, 3, tall, wide))
    ratio = min(tall / height, wide / width)
    inner = max(round(height * ratio), 1), max(round(width * ratio), 1)
    top, left = round((tall - inner[0]) / 2 - 0.1), round((wide - inner[1]) / 2 - 0.1)
    wanted = np.full((3, tall, wide), 114 / 255, np.float32)
    wanted[:, top : top + inner[0], left : left + inner[1]] = 1
    assert np.array_equal(found, wanted)


def test_a_number_is_the_shorter_side_and_two_numbers_stretch(tmp_path):
    folder = written(tmp_path, noise(30, 60))
    image = Image.open(folder / "a.png")
    spec = image_input(1, 16, 16, 3)
    shorter = np.asarray(image.resize((40, 20), Image.Resampling.BILINEAR))[2:18, 12:28]
    assert np.array_equal(fed(folder, "resize=20", spec), shorter)
    assert np.array_equal(fed(folder, "resize=20,crop=16", spec), shorter)
    stretched = np.asarray(image.resize((30, 20), Image.Resampling.BILINEAR))[2:18, 7:23]
    assert np.array_equal(fed(folder, "resize=20x30,crop=16", spec), stretched)


def test_open_sizes_and_layouts_are_taken_from_the_list(tmp_path):
    folder = written(tmp_path, noise(30, 60))
    assert fed(folder, "yolo-letterbox,size=32x64", image_input("N", 3, "H", "W")).shape == (3, 32, 64)
    assert fed(folder, "imagenet,resize=24,crop=20", image_input("N", 3, None, None)).shape == (3, 20, 20)
    assert fed(folder, "0-1,resize=8x16", image_input(1, 8, None, 3)).shape == (8, 16, 3)
    assert fed(folder, "0-1,size=8,layout=nhwc", image_input("N", "H", "W", "C")).shape == (8, 8, 3)
    assert fed(folder, "0-1,layout=nchw", image_input("N", 1, 28, 1)).shape == (1, 28, 1)


def test_integer_inputs_take_pixels_that_are_fitted_and_ordered(tmp_path):
    pixels = noise(8, 8)
    source = open_data(
        written(tmp_path, pixels),
        [image_input(1, 6, 6, 3, dtype="uint8")],
        DataOptions(preprocess="imagenet,crop=6,channels=bgr"),
    )
    (feed,) = source
    assert np.array_equal(feed["image"][0], pixels[1:7, 1:7, ::-1])
    assert source.description.endswith("(1 images, preprocess imagenet,crop=6,channels=bgr, pixels 0 to 255)")


# --- what is refused -----------------------------------------------------------------------------------

REFUSED = {
    "imagnet,mean=0": r"unknown preset 'imagnet' .*Did you mean 'imagenet'\? Known: imagenet, 0-1",
    "": r"unknown preset '' .*Known: imagenet, 0-1, -1-1, caffe, yolo-letterbox",
    "means=1": r"unknown key 'means' .*Did you mean 'mean'\? Known: resize, crop, pad, size, scale, mean, std, layout",
    "0-1,imagenet": r"unknown key 'imagenet'",
    "layout=nchv": r"has layout=nchv .*Did you mean layout=nchw\? Give layout=nchw\|nhwc",
    "channels=grb": r"has channels=grb .*Did you mean channels=rgb",
    "resize=leterbox": r"Did you mean resize=letterbox\? Give resize=N\|HxW\|letterbox",
    "resize=0": r"has resize=0 .*Give resize=N\|HxW\|letterbox",
    "resize=3x": r"has resize=3x ",
    "crop=101%": r"has crop=101% .*Give crop=N\|HxW\|P%",
    "pad=256": r"has pad=256 .*Give pad=0\.\.255",
    "scale=0": r"has scale=0 .*Give scale=X, above 0",
    "mean=1/2": r"has mean=1/2 .*Give mean=X or X/Y/Z",
    "mean=nan": r"has mean=nan",
    "std=0": r"has std=0 .*above 0",
    "mean=1,mean=2": r"gives mean twice",
    "resize=letterbox,crop=3": r"crops what a letterbox fits as a whole",
    "imagenet,resize=3": r"both resizes and crops a share .*Give crop=N or crop=HxW after resize",
    "pad=3": r"pads without a letterbox .*Add resize=letterbox",
    "size=3,crop=4": r"says both size=3x3 and crop=4x4 .*Leave one of them out",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_with_the_nearest_known(text):
    with pytest.raises(OptionError, match=rf"^preprocess: --preprocess {text} .*{REFUSED[text]}") as caught:
        parse_preprocess(text)
    assert caught.value.where == "--preprocess"


MISFITS = [
    ("0-1,layout=nhwc", (1, 3, 8, 8), r"does not agree with input 'image', which takes float32 \(1,3,8,8\).*Leave"),
    ("0-1,layout=nhwc", (1, 8, 8, 5), r"does not agree .*Prepare the images yourself"),
    ("0-1", (1, 3, 8, 3), r"channels first or last .*add layout=nchw or layout=nhwc"),
    ("crop=9", (1, 3, 8, 8), r"makes images of height 9, and the input takes 8 .*Change crop"),
    ("resize=8x9", (1, 3, 8, 8), r"makes images of width 9, and the input takes 8 .*Change resize"),
    ("size=8", (1, 3, 8, 9), r"makes images of width 8, and the input takes 9 .*Change size"),
    ("0-1", (1, 3, "H", 8), r"no image of a fixed size .*add size=HxW and layout=nchw"),
    ("0-1,size=8", (1, "C", 8, 8), r"no image of a fixed size"),
    ("std=1/2/3", (1, 1, 8, 8), r"needs 3 channels, and input 'image' has 1"),
    ("resize=5,crop=8", (1, 3, 8, 8), r"a crop of 8x8 does not fit into its 5x5 pixels .*a\.png"),
]


@pytest.mark.parametrize(("text", "shape", "message"), MISFITS)
def test_what_does_not_fit_the_input_is_refused(tmp_path, text, shape, message):
    with pytest.raises(DataError, match=message):
        fed(written(tmp_path, noise(8, 8)), text, image_input(*shape))
