"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure, and a failure must come back when the same test runs again.
settings.register_profile("quantool", deadline=None, derandomize=True)
settings.load_profile("quantool")
