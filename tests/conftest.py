"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine is no failure, and a failure must come back when the same test runs again.
settings.register_profile("quantool", deadline=None, derandomize=True)
settings.load_profile("quantool")

# A run of the tests may be a step of a workflow, and what they run is not.
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
