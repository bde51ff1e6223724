"""Check that a command that a page shows could be carried out, without carrying it out."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXTERNAL = frozenset({"cd", "git", "python -m venv", "python -m http.server", "pytest"})
"""Commands of others, of which only the paths are checked that lie in the repository."""


class Parsed(BaseException):
    """A program's parser has accepted its words."""


def commands(block: str) -> list[list[str]]:
    """Return the words of each command of a shell block: of each line, and of each part between `&&`."""
    joined = block.replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in joined.splitlines()]
    parts = [re.sub(r" > \S+$", "", part) for line in lines for part in line.split(" && ")]
    words = [shlex.split(part, comments=True) for part in parts]
    return [one for one in words if one]


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check one command.

    Args:
        words: Its words, without a prompt.
        monkeypatch: Undoes what the check changes.

    Raises:
        AssertionError: If no such program, session, file or package is in the repository, or it is no command that this
            function can check, or the program's parser refuses its options.
    """
    while re.fullmatch(r"\w+=\S*", words[0]):  # variables of the environment
        words = words[1:]
    program = Path(words[0]).name.replace("python3", "python")
    words = [" ".join([program, *words[1:3]]), *words[3:]] if words[1:2] == ["-m"] else [program, *words[1:]]
    program, arguments = words[0], words[1:]
    if program == "nox":
        assert_sessions(arguments)
    elif program == "python -m pip":
        assert_pip(arguments)
    elif program == "torchrun":
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(arguments)
        assert_parses(str(parsed.training_script), parsed.training_script_args, monkeypatch)
    elif program.startswith("python -m camshaft."):
        assert_parses(program.removeprefix("python -m "), arguments, monkeypatch)
    elif program == "python" and arguments:
        assert_parses(arguments[0], arguments[1:], monkeypatch)
    else:
        assert program in EXTERNAL, f"`{program}` must be a command that this test knows. Extend {__name__}."
        missing = [word for word in arguments if word.startswith("./") and not (ROOT / word).exists()]
        assert not missing, f"{missing} must be paths of the repository."


def assert_parses(target: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a program until its parser has accepted the arguments; one without a parser must be given none."""

    nested: list[str] = []  # parsers of sub-commands are parsers, too

    def stopping(method: Any) -> Any:
        def parse_args(self: Any, *args: Any, **kwargs: Any) -> Any:
            nested.append(self.prog)
            parsed = method(self, *args, **kwargs)
            nested.pop()
            if nested:
                return parsed
            raise Parsed

        return parse_args

    script = find_script(target)
    if target.endswith(".py") and "parse_args(" not in script.read_text(encoding="utf-8"):
        assert not arguments, f"`{target}` takes no arguments, but got {arguments}."
        return
    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", [target, *arguments])
        folder = script.parent if target.endswith(".py") else Path.cwd()  # as Python does it
        patched.setattr(sys, "path", [str(folder), *sys.path])
        for parser in parser_classes():
            patched.setattr(parser, "parse_args", stopping(parser.parse_args))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except (Parsed, SystemExit) as end:
            assert isinstance(end, Parsed) or not end.code, f"`{target}` refuses {arguments}."


def find_script(target: str) -> Path:
    """Return the file of a program: of the repository, of the current folder, or of a module."""
    if target.endswith(".py"):
        found = [path for path in (ROOT / target, Path(target)) if path.is_file()]
    else:
        specs = [find_spec(name) for name in (f"{target}.__main__", target) if find_spec(target) is not None]
        found = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    assert found, f"`{target}` must be a file of the repository, or a module."
    return found[0]


def parser_classes() -> tuple[Any, ...]:
    import jsonargparse

    return (argparse.ArgumentParser, jsonargparse.ArgumentParser)


def assert_sessions(arguments: list[str]) -> None:
    """Check that noxfile.py has the sessions."""
    assert arguments[:1] in (["-s"], ["-l"]), f"`nox` must be given -s or -l, but got {arguments}."
    named = arguments[1:] if "--" not in arguments else arguments[1 : arguments.index("--")]
    sessions = [word for word in named if not word.startswith("-")]
    assert set(sessions) <= nox_sessions(), f"{sessions} must be among the sessions {sorted(nox_sessions())}."


@cache
def nox_sessions() -> frozenset[str]:
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"^[*-] (\S+)", listed, re.MULTILINE))


def assert_pip(arguments: list[str]) -> None:
    """Check that what is installed from the repository lies there, with the extras that are asked for."""
    assert arguments[:1] == ["install"], f"pip must be told to install, but got {arguments}."
    for word in arguments[1:]:
        if word.endswith(".txt"):
            assert (ROOT / word).is_file(), f"`{word}` must be a file of the repository."
        if not word.startswith("./"):
            continue
        path, _, extras = word.rstrip("]").partition("[")
        project = ROOT / path / "pyproject.toml"
        assert project.is_file(), f"`{path}` must be a package of the repository."
        missing = [extra for extra in extras.split(",") if extra and f"\n{extra} = " not in project.read_text()]
        assert not missing, f"{missing} must be extras in {project}."
