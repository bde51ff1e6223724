"""Turn links to files of the repository into links that work on the site.

A page links to a file outside docs/ by its relative path, so that the link works where the repository is browsed, too.
On the site it leads to a page with the file's text, made here, or, where `repository_url` is set, to that file there.
A link to a program of the tutorials leads to its page. In reStructuredText :repository:`path` is a link to a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
FILES = "_repository"
PROGRAMS = ROOT / "docs/tutorials_source"
PAGES_OF_PROGRAMS = ROOT / "docs/tutorials"


def rewrite_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the relative links of a page that lead out of docs/.

    Raises:
        ExtensionError: if there is no such file.
    """
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return

    def target(match: re.Match[str]) -> str:
        path = (page.parent / match[1]).resolve()
        if path.is_relative_to(PROGRAMS):
            return os.path.relpath(PAGES_OF_PROGRAMS / f"{path.stem}.rst", page.parent)
        if path.is_relative_to(app.srcdir):
            return match[0]
        if not path.exists():
            raise ExtensionError(f"{docname} links to {match[1]}, which does not exist. Correct the path.")
        return _address(app, docname, path.relative_to(ROOT).as_posix(), match[2] or "")

    source[0] = LINK.sub(target, source[0])


def file_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> tuple[list[nodes.Node], list[Any]]:
    """Make the link of :repository:`path`, a path from the root of the repository."""
    environment = inliner.document.settings.env
    if not (ROOT / text).exists():
        raise ExtensionError(f"{environment.docname} links to {text}, which does not exist. Correct the path.")
    address = _address(environment.app, environment.docname, text, "").removeprefix("repository:")
    return [nodes.reference(rawtext, text, refuri=address)], []


def _address(app: Sphinx, docname: str, path: str, fragment: str) -> str:
    if app.config.repository_url:
        return f"{app.config.repository_url}/blob/main/{path}{fragment}"
    linked: set[str] = app.env.__dict__.setdefault("repository_files", set())
    linked.add(path)
    up = "../" * (len(PurePosixPath(docname).parts) - 1)
    return f"repository:{up}{FILES}/{path}.html"


def merge_files(app: Sphinx, env: Any, docnames: Any, other: Any) -> None:
    """Take over what a process of a parallel build has found."""
    env.__dict__.setdefault("repository_files", set()).update(other.__dict__.get("repository_files", ()))


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make a page for each file that is linked to."""
    for path in sorted(app.env.__dict__.get("repository_files", ())):
        yield f"{FILES}/{path}", {"title": path, "body": f"<h1>{path}</h1>{_text(ROOT / path)}"}, "page.html"


def _text(path: Path) -> str:
    if path.is_dir():
        names = sorted(child.name + "/" * child.is_dir() for child in path.iterdir() if not child.name.startswith("."))
        return "<ul>" + "".join(f"<li>{name}</li>" for name in names if name != "__pycache__/") + "</ul>"
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = get_lexer_for_filename("plain.txt")
    text = highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter(lineanchors="L"))
    return re.sub(r'(id="|name="|href="#)L-', r"\1L", text)  # as links to lines are written elsewhere


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.add_config_value("repository_url", os.environ.get("CAMSHAFT_REPOSITORY_URL", ""), "env", str)
    app.config.myst_url_schemes = {"http": None, "https": None, "mailto": None, "repository": "{{path}}"}
    app.add_role("repository", file_role)
    app.connect("source-read", rewrite_links)
    app.connect("env-merge-info", merge_files)
    app.connect("html-collect-pages", file_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
