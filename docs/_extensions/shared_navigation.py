"""Compute the navigation tree of pages with source code once.

The theme computes the tree anew for each page, which takes most of the build's time. On pages of sources, which are not
in the tree themselves, it is the same but for the way to the root.
"""

from __future__ import annotations

import posixpath
from typing import Any

from repository_links import FILES
from sphinx.application import Sphinx

_SOURCES = (f"{FILES}/", "_modules/")
_TREE = "furo_navigation_tree"
_BEFORE_THEME, _AFTER_THEME = 400, 600


class SharedNavigation:
    """The navigation tree of pages of sources, from the first of them on."""

    def __init__(self) -> None:
        self._tree: str | None = None

    def spare_theme(self, app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        """Leave the theme without a tree to compute."""
        if self._tree is not None and pagename.startswith(_SOURCES):
            context["toctree"] = lambda **options: ""

    def share(self, app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        """Take the tree over from the first page, and give it to the others."""
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
