"""Write reference/errors/: every error and warning of the packages, with its cause and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from messages_in_code import Message, messages
from public_names import PACKAGES
from sphinx.application import Sphinx
from written_pages import write

FOLDER = "reference/errors"
ABOUT = """
What the packages raise and warn of, as the sources have it: `{name}` stands for what a message fills in,
`{value} ({type})` for the value that it is about. To find a message, search for some words of it.
"""


def write_pages(app: Sphinx) -> None:
    """Write the pages, one for each package."""
    pages = {f"{package}.md": _page(package) for package in PACKAGES}
    write(Path(app.srcdir) / FOLDER, {"index.md": _index(), **pages}, suffix=".md")


def _index() -> Iterator[str]:
    yield from ("# Errors and warnings", ABOUT, "```{toctree}", ":maxdepth: 1", "", *PACKAGES, "```")


def _page(package: str) -> Iterator[str]:
    own = [one for one in messages() if f"/camshaft/{package}/" in one.file]
    yield from (f"# Errors of camshaft.{package}", ABOUT)
    for file, group in groupby(own, key=lambda one: one.file):
        yield from (f"## {_module(file)}", "")
        seen: dict[tuple[str, str], list[Message]] = {}
        for one in group:
            seen.setdefault((one.kind, one.text), []).append(one)
        for same in seen.values():
            yield from entry(same)


def entry(same: list[Message]) -> Iterator[str]:
    """Describe a message, and the places that raise it."""
    first = same[0]
    remedy = "" if re.fullmatch("{.*}", first.remedy) else first.remedy  # one that differs from case to case is no help
    before, _, after = first.text.rpartition(remedy) if remedy else ("", "", first.text)
    text = " ".join(f"{before}{after}".split())
    places = ", ".join(f"[`{one.where or 'the module'}`](../../../{one.file}#L{one.line})" for one in same)
    yield from (f"**{first.kind}**: {as_markdown(text)}", "")
    if first.cause:
        yield f": Cause: {as_markdown(first.cause)}"
        yield ""
    if remedy:
        yield f": Remedy: {as_markdown(remedy)}"
        yield ""
    if first.is_caught:
        yield ": Caught: it is the reason that another message gives."
        yield ""
    yield f": {'Warns' if first.is_warning else 'Raised'} in {places}."
    yield ""


def _module(file: str) -> str:
    return file.partition("/src/")[2].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def as_markdown(text: str) -> str:
    """Return a text with its code between backquotes as it is, and nothing else that Markdown would read."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\`*_{}\[\]<>#|~^$:])", r"\\\1", part) for part in parts
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
