"""The built site, and its pages as Chromium shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = Path(os.environ.get("CAMSHAFT_SITE", Path(__file__).parents[2] / ".nox" / "site"))
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}

CUT = """() => [...document.querySelectorAll("article *")].filter((element) => {
    const style = getComputedStyle(element);
    const isClipped = ["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1;
    const box = element.getBoundingClientRect();
    const canScroll = (one) => ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
    const scrolls = (one) => one && (canScroll(one) || scrolls(one.parentElement));
    const isOut = box.width > 1 && (box.right > innerWidth + 1 || box.left < -1) && !scrolls(element.parentElement);
    return style.opacity !== "0" && (style.textOverflow === "ellipsis" || isClipped || isOut);
}).map((element) => element.outerHTML.slice(0, 200))"""
"""Elements whose text is cut, or that lie outside of the window without a way to scroll to them."""


def open_page(browser: Browser, url: str, size: str = "desktop", scheme: Any = "light") -> Page:
    """Open a page and note what its console says."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(10_000)
    noted = page.told = []  # type: ignore[attr-defined]
    page.on("console", lambda message: noted.append(message.text))
    page.on("pageerror", lambda error: noted.append(str(error)))
    page.on("requestfailed", lambda request: noted.append(request.url))
    page.goto(url)
    return page
