"""Every link of the built site leads to a file and an anchor that are there.

The session `docs` builds the site before its tests; by hand, name its folder: `CAMSHAFT_SITE=folder pytest docs/tests`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import SITE

needs_site = pytest.mark.skipif(not SITE.is_dir(), reason="there is no built site; run `nox -s docs`")


ATTRIBUTE = re.compile(r'\s(href|src|id|name)="([^"]+)"')  # of a tag: quotes of the text are written as &quot;


class Page:
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        for name, value in ATTRIBUTE.findall(text):
            (self.links if name in ("href", "src") else self.anchors).add(unescape(value))


def dead_links(site: Path) -> Iterator[str]:
    """Say which links of a folder of pages lead nowhere."""
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    pages = {name: Page((site / name).read_text(encoding="utf-8")) for name in files if name.endswith(".html")}
    for name, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or _is_source(name):
                continue
            path = posixpath.join(posixpath.dirname(name), unquote(parts.path)) if parts.path else name
            target = posixpath.normpath(path)
            if target not in files:  # a folder
                target = posixpath.normpath(posixpath.join(path, "index.html"))
            anchor = unquote(parts.fragment)
            if target not in files:
                yield f"{name}: {link}"
            elif "=" in anchor:
                continue  # a state of the atlas, which its script reads
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: {link} (no such anchor)"


def _is_source(name: str) -> bool:
    """Whether a page shows a source for `sphinx.ext.viewcode`.

    That takes all names of a module to be documented as one of them is: its links lead to the right page, and may name
    an anchor that is not there. Its index also lists a module that its parser cannot read (hooks_core.bases, in Sphinx
    9.0), of which it makes no page.
    """
    return name.startswith("_modules/")


@needs_site
def test_every_link_of_the_site_leads_somewhere() -> None:
    assert list(dead_links(SITE)) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"></p><a href="#x"></a><a href="b.html#there"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a><a href="https://example.org/x"></a><a href="#top"></a>')
    (tmp_path / "in").mkdir()
    (tmp_path / "in/index.html").write_text('<a href="../b.html"></a><a href="../in/"></a><a href="../../c.html"></a>')
    assert list(dead_links(tmp_path)) == [
        "a.html: b.html#there (no such anchor)",
        "a.html: c.png",
        "b.html: #top (no such anchor)",
        "in/index.html: ../../c.html",
    ]
