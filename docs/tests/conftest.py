"""The browser that shows the site."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browser import SITE

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("Chromium must be installed to open the pages. Install it, as by `apt-get install chromium`.")
    from playwright.sync_api import sync_playwright

    if not SITE.is_dir():
        pytest.fail(f"{SITE} must be built. Run `nox -s docs`, or build the site and set CAMSHAFT_SITE to its folder.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
