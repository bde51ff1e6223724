"""Write reference/command-line.rst: what each program of the packages prints for `--help`, and each of its commands.

A program is a package with a `__main__`. Its parser is asked, so that the page has every option that there is.
"""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from public_names import PACKAGES, ROOT
from sphinx.application import Sphinx
from written_pages import indented, title, write

FOLDER = "reference/command-line"
WIDTH = "100"


def write_page(app: Sphinx) -> None:
    """Write the page."""
    write(Path(app.srcdir) / FOLDER, {"index.rst": _page()})


def programs() -> list[str]:
    """Return the modules that are run with `python -m`."""
    found = [f"camshaft.{name}" for name in PACKAGES]
    return [name for name in found if any(ROOT.glob(f"packages/*/src/{name.replace('.', '/')}/__main__.py"))]


def help_of(program: str, *command: str) -> tuple[str, list[str]]:
    """Return what a program prints for `--help`, and the names of the commands that its parser has."""
    parsers: list[argparse.ArgumentParser] = []
    print_help = argparse.ArgumentParser.print_help

    def recorded(self: argparse.ArgumentParser, file: Any = None) -> None:
        parsers.append(self)
        print_help(self, file)

    printed = io.StringIO()
    with (
        patch.object(argparse.ArgumentParser, "print_help", recorded),
        patch.object(sys, "argv", [program, *command, "--help"]),
        patch.dict(os.environ, COLUMNS=WIDTH),
        redirect_stdout(printed),
        suppress(SystemExit),
    ):
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    groups = [action for parser in parsers for action in parser._actions if hasattr(action, "_name_parser_map")]
    return printed.getvalue(), [name for group in groups for name in group._name_parser_map]


def _page() -> Iterator[str]:
    yield from title("Command lines", "=")
    yield from ("What each program prints for ``--help``.", "")
    for program in programs():
        yield from title(f"python -m {program}", "-")
        text, commands = help_of(program)
        yield from _block(text)
        for command in commands:
            yield from title(f"{program} {command}", "~")
            yield from _block(help_of(program, command)[0])


def _block(text: str) -> Iterator[str]:
    yield from (".. code-block:: text", "")
    yield from indented(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this file."""
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
