from __future__ import annotations

import builtins

import numpy as np
import pytest

from quantool.data import PRESETS, DataOptions, InputSpec, open_data
from quantool.errors import DataError, OptionError

Image = pytest.importorskip("PIL.Image", reason="the extra images")

FIRST = InputSpec(name="image", dtype="float32", shape=("N", 3, 4, 8))
LAST = InputSpec(name="image", dtype="float32", shape=(2, 4, 8, 3))
COLOUR = (255, 51, 0)


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        Image.new("RGB", (20 + number, 10), COLOUR).save(tmp_path / f"{number}.png")
    return tmp_path


def feeds(folder, spec=FIRST, **options):
    return list(open_data(folder, [spec], DataOptions(**options)))


EXPECTED = {
    "imagenet": [(1 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (0 - 0.406) / 0.225],
    "0-1": [1, 0.2, 0],
    "-1-1": [1, -0.6, -1],
    "caffe": [0 - 103.939, 51 - 116.779, 255 - 123.68],
    "yolo-letterbox": [1, 0.2, 0],
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_give_each_channel_its_value(folder, preset):
    found = feeds(folder, preprocess=preset)
    assert [feed["image"].shape for feed in found] == [(1, 3, 4, 8)] * 5
    for channel, value in enumerate(EXPECTED[preset]):
        # An image of twice the input's width fills a letterbox too.
        assert np.all(found[0]["image"][0, channel] == np.float32(value))


def test_fixed_batches_and_channels_last(folder):
    source = open_data(folder, [LAST], DataOptions(preprocess="0-1"))
    found = list(source)
    assert [feed["image"].shape for feed in found] == [(2, 4, 8, 3)] * 2
    assert np.array_equal(found[0]["image"][0, 0, 0], np.array([1, 0.2, 0], np.float32))
    assert source.description.endswith("(5 images, preprocess 0-1; the last 1 fill no feed and are left out)")


def test_integer_inputs_take_pixels(folder):
    spec = InputSpec(name="image", dtype="uint8", shape=(1, 4, 8, 3))
    assert tuple(feeds(folder, spec)[0]["image"][0, 0, 0]) == COLOUR


def test_one_channel_takes_grey(folder):
    spec = InputSpec(name="image", dtype="float32", shape=(1, 1, 4, 8))
    grey = round(0.299 * 255 + 0.587 * 51)
    assert np.all(feeds(folder, spec, preprocess="0-1")[0]["image"] == np.float32(grey / 255))
    with pytest.raises(DataError, match=r"--preprocess imagenet needs 3 channels, and input 'image' has 1"):
        feeds(folder, spec, preprocess="imagenet")


def test_crops_keep_the_centre_and_the_proportions(tmp_path):
    # A red square in the middle of a wide image fills the square that the crop keeps.
    image = Image.new("RGB", (300, 100), (0, 0, 0))
    image.paste((255, 0, 0), (100, 0, 200, 100))
    image.save(tmp_path / "wide.png")
    spec = InputSpec(name="image", dtype="float32", shape=(1, 3, 16, 16))
    assert np.all(feeds(tmp_path, spec, preprocess="caffe")[0]["image"][0, 2] == np.float32(255 - 123.68))
    stretched = feeds(tmp_path, spec, preprocess="0-1")[0]["image"][0, 0]
    assert stretched[0, 0] == 0
    assert stretched[0, 8] == 1


@pytest.mark.parametrize("preset", [None, "imagnet"])
def test_a_missing_or_unknown_preset_lists_the_known(folder, preset):
    given = "imagnet has an unknown preset 'imagnet' .*Did you mean 'imagenet'" if preset else "is missing"
    with pytest.raises(OptionError, match=rf"--preprocess {given}.*imagenet, 0-1, -1-1, caffe, yolo-letterbox"):
        feeds(folder, preprocess=preset)


@pytest.mark.parametrize("shape", [("N", 3, "H", "W"), ("N", 64), None, (1, 5, 4, 8)])
def test_inputs_that_are_no_image_are_named(folder, shape):
    spec = InputSpec(name="image", dtype="float32", shape=shape)
    with pytest.raises(DataError, match=r"input 'image' takes float32 .*no image of a fixed size .*\.npz"):
        feeds(folder, spec, preprocess="0-1")


def test_a_damaged_image_is_named(folder):
    (folder / "3.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(DataError, match=r"no readable image: .*3\.png"):
        feeds(folder, preprocess="0-1")


def test_without_pillow_the_extra_is_named(folder, monkeypatch):
    real = builtins.__import__

    def without_pillow(name, *rest):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(DataError, match=r"needs Pillow, which is not installed .*pip install 'quantool\[images\]'"):
        feeds(folder, preprocess="0-1")
