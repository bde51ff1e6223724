"""Keep sentences with a colon whole.

Napoleon takes what stands before a colon for a type, in what a function returns and what a property is. The types of
this project are annotations, so there is none in its docstrings.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def join(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put what napoleon took for a type back to the beginning of its sentence."""
    field, place = (":type: ", "") if what in ("property", "attribute") else (":rtype: ", ":returns: ")
    taken = next((number for number, line in enumerate(lines) if line.startswith(field)), None)
    if taken is not None:
        beginning = lines.pop(taken).removeprefix(field)
        first = next(number for number, line in enumerate(lines) if line.startswith(place))
        lines[first] = f"{place}{beginning}: {lines[first].removeprefix(place)}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.connect("autodoc-process-docstring", join, priority=900)  # after napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
