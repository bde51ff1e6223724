"""Compute the navigation tree of all pages once.

Sphinx resolves the tree anew for each page, and the theme parses it, which takes most of the build's time. The pages'
trees differ by the way to the root, and by the marks on the page itself and what it is below; on pages of sources,
which are not in the tree, by the way to the root alone.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from repository_links import FILES
from sphinx.application import Sphinx
from sphinx.environment.adapters.toctree import global_toctree_for_doc

_SOURCES = (f"{FILES}/", "_modules/")
_TREE = "furo_navigation_tree"
_BEFORE_THEME, _AFTER_THEME = 400, 600
_TAGS = re.compile(r'(</?(?:ul|li)\b[^>]*>|<a class="reference internal" href="[^"]*">)')


class Toctree:
    """Sphinx's tree of contents, with the links and marks of any page.

    Args:
        html: The tree as it is on the root page, which marks nothing.
    """

    def __init__(self, html: str) -> None:
        self._parts = _TAGS.split(html)
        self._links: dict[int, str] = {}
        self._marks: dict[str, list[int]] = {}
        open_tags: list[int] = []
        for idx, part in enumerate(self._parts):
            if part.startswith(("</ul", "</li")):
                open_tags.pop()
            elif part.startswith(("<ul", "<li")):
                open_tags.append(idx)
            elif part.startswith("<a "):
                self._links[idx] = part.partition('href="')[2].removesuffix('">')
                self._marks[self._links[idx]] = list(open_tags)

    def on(self, page: str) -> str:
        """Return the tree as Sphinx has it on a page, such as "guides/logging.html"."""
        parts = list(self._parts)
        folder = posixpath.dirname(page)
        for idx, link in self._links.items():
            parts[idx] = f'<a class="reference internal" href="{posixpath.relpath(link, folder)}">'
            if link == page:
                parts[idx] = '<a class="current reference internal" href="#">'
        for idx in self._marks.get(page, ()):
            parts[idx] = '<ul class="current">' if parts[idx] == "<ul>" else parts[idx].replace('">', ' current">')
        return "".join(parts)


class SharedNavigation:
    """The navigation tree, from the first page on; on pages of sources as the theme has made it."""

    def __init__(self) -> None:
        self._toctree: Toctree | None = None
        self._tree: str | None = None

    def spare_theme(self, app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        """Leave Sphinx without a tree to resolve, and the theme without one to parse where it has done so."""
        if self._tree is not None and pagename.startswith(_SOURCES):
            context["toctree"] = lambda **options: ""
        elif "toctree" in context:
            context["toctree"] = lambda **options: self._toctree_of(app, options).on(f"{pagename}.html")

    def _toctree_of(self, app: Sphinx, options: dict[str, Any]) -> Toctree:
        if self._toctree is None:
            root = app.config.root_doc
            resolved = global_toctree_for_doc(app.env, root, app.builder, tags=app.tags, **options)
            self._toctree = Toctree(app.builder.render_partial(resolved)["fragment"])
        return self._toctree

    def share(self, app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        """Take the tree over from the first page of sources, and give it to the others."""
        if not pagename.startswith(_SOURCES):
            return
        link = f'href="{posixpath.relpath(".", posixpath.dirname(pagename))}/'
        if self._tree is None:
            self._tree = context[_TREE].replace(link, 'href="/')
        context[_TREE] = self._tree.replace('href="/', link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file on both sides of the theme's."""
    navigation = SharedNavigation()
    app.connect("html-page-context", navigation.spare_theme, priority=_BEFORE_THEME)
    app.connect("html-page-context", navigation.share, priority=_AFTER_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
