"""What CONTRIBUTING and SECURITY name exists."""

from __future__ import annotations

import re

import pytest

from automation.conftest import ROOT

SECURITY = (ROOT / ".github/SECURITY.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", SECURITY + CONTRIBUTING)))


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8")


def test_every_defence_names_its_test() -> None:
    rows = [line for line in SECURITY.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 10
    assert all("`tests/" in row for row in rows)


@pytest.mark.parametrize("text", [SECURITY, CONTRIBUTING])
def test_links_lead_somewhere(text: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (ROOT / ".github" / link).exists(), link


def test_markers_and_scripts_exist() -> None:
    markers = re.findall(r"`pytest -m (\w+)`", CONTRIBUTING)
    assert all(f'"{marker}: ' in (ROOT / "pyproject.toml").read_text(encoding="utf-8") for marker in markers)
    assert all((ROOT / path).exists() for path in re.findall(r"bash (\.ci/[\w.-]+)", CONTRIBUTING))
