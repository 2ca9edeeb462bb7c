"""What several test files share."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser for the page tests; without one they fail, since a page nobody looked at is not tested."""
    named = os.environ.get("CAPPLAN_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.fail(f"no Chromium: looked for {', '.join(names)}; install one, or name one in CAPPLAN_CHROMIUM")
