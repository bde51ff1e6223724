"""The pages that people wrote, opened in Chromium from their files: pictures, text and search."""

from __future__ import annotations

import pytest
from browser import CUT, SITE, SIZES, open_page
from playwright.sync_api import Browser

GENERATED = ("_modules", "_repository", "hooks", "reference", "genindex.html", "py-modindex.html")
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in SITE.rglob("*.html")
    if path.relative_to(SITE).parts[0] not in GENERATED
)
BROKEN_PICTURES = "[...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"


# colours do not depend on the size, nor what is cut on the colours
@pytest.mark.parametrize(("size", "scheme"), zip(SIZES, ("light", "dark"), strict=True))
def test_pictures_are_shown_no_text_is_cut_and_the_console_is_empty(browser: Browser, size: str, scheme: str) -> None:
    assert len(PAGES) > 40
    page = open_page(browser, (SITE / "index.html").as_uri(), size, scheme)
    found = {}
    for name in PAGES:
        page.goto((SITE / name).as_uri())
        page.evaluate("document.querySelectorAll('img').forEach((image) => image.loading = 'eager')")
        page.wait_for_function("[...document.images].every((image) => image.complete)")
        problems = [*page.evaluate(BROKEN_PICTURES), *page.evaluate(CUT)]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            problems.append("is wider than the window")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        if (sum(map(int, background[4:-1].split(",")[:3])) < 300) != (scheme == "dark"):
            problems.append(f"has the background {background}")
        if problems:
            found[name] = problems
    assert found == {} and page.told == []  # type: ignore[attr-defined]
    page.close()


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("on_train_epoch_end", "hooks/_generated/on_train_epoch_end.html"),
        ("RunLedger", "reference/"),
        ("accumulate", "coming-from/"),
    ],
)
def test_the_search_finds_hooks_names_and_pages_without_a_server(browser: Browser, words: str, target: str) -> None:
    page = open_page(browser, f"{(SITE / 'search.html').as_uri()}?q={words}")
    page.wait_for_selector(f"#search-results li a[href*='{target}']")  # results come one after the other
    page.close()
