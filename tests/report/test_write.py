"""Report files: refused before any work where they cannot be written, and published whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quantool.errors import OptionError
from quantool.report.write import RENDERERS, check_paths, write_reports
from report.examples import NASTY, report


def test_every_suffix_writes_its_kind(tmp_path: Path) -> None:
    paths = [tmp_path / f"r{suffix}" for suffix in RENDERERS]
    check_paths(paths)
    write_reports(report(), paths)
    starts = [path.read_text(encoding="utf-8")[:15] for path in paths]
    assert starts == ['{\n  "schema": "', "<!DOCTYPE html>", "Data: digits.ca", '<?xml version="']
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)


def test_equal_reports_are_equal_bytes(tmp_path: Path) -> None:
    for suffix in RENDERERS:
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        write_reports(report(NASTY), [first, second])
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("r.pdf", "unknown-report", r"unknown suffix '\.pdf'.*\.json, \.html, \.md, \.xml"),
        ("r", "unknown-report", "unknown suffix ''"),
        ("no/r.md", "no-folder", "'.*no' does not exist"),
        ("folder.md", "output-is-folder", "is a folder"),
        ("there.md", "output-exists", "exists already.*--force"),
        ("model.json", "output-is-input", "is read by this run, as"),
        ("link.json", "output-is-input", "is read by this run, as"),
    ],
)
def test_a_report_that_cannot_be_is_refused(tmp_path: Path, name: str, code: str, words: str) -> None:
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "there.md").write_text("old")
    model = tmp_path / "model.json"
    model.write_text("model")
    (tmp_path / "link.json").symlink_to(model)
    force = code == "output-is-input"
    with pytest.raises(OptionError, match=words) as caught:
        check_paths([tmp_path / name], reads=[model, tmp_path / "random"], force=force)
    assert caught.value.code == code
    assert str(tmp_path / name) in caught.value.where


def test_one_path_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="asked for twice"):
        check_paths([tmp_path / "r.md", tmp_path / "r.md"])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OptionError, match="asked for twice"):
        check_paths([tmp_path / "r.md"], output=tmp_path / "link" / "r.md", force=True)


def test_force_replaces(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    check_paths([path], force=True)
    write_reports(report(), [path])
    assert json.loads(path.read_text())["command"] == "quantize"


def test_a_report_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_reports(report(), [tmp_path / "r.md"])
    assert (tmp_path / "r.md").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "r.md").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OptionError, match="cannot be written: No space left on device"):
        write_reports(report(), [tmp_path / "r.md"])
    assert [path.name for path in tmp_path.iterdir()] == ["r.md"]
    assert (tmp_path / "r.md").read_text() == "old"
