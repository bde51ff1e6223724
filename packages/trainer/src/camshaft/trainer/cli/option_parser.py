"""A parser of options whose errors stand in a line and suggest the closest name for an unknown one."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentError, ArgumentParser

from camshaft.trainer.cli.class_types import CLASSES

_OF_CLASS = re.compile(r"Problem with given class_path '([\w.]+)':\s+Option '([^']+)' is not accepted")
_OF_MODULE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_OF_GROUP = re.compile(r"(?:Group '([\w.]+)'|Subcommand '\w+'|Parser) does not accept option '([^']+)'")
_OF_ITSELF = re.compile(r"\AOption '([^']+)' is not accepted")  # a parser that was made for a class
_OF_WORDS = re.compile(r"unrecognized arguments: (.*)", re.IGNORECASE)
_KEY = re.compile(r'^(\s*)(?:- )?Parser key "([\w.]+)":(.*)$')
_EXPECTED = re.compile(r"Expected an? (?:<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*?)\])")
_GOT = re.compile(r"(?:Given|Got) value: (.*)")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_NOISE = re.compile(
    r"Does not validate against any|Subtypes: |Errors:$|Given value|Expected a path but|is abstract$|^$"
    r"|Not a valid subclass|Subclass types expect one of|a class path \(str\)|a dict with"
    r"|Does not implement|a dict without class_path|Expected an import path or a subclass spec"
)
_WORDS = {"NoneType": "null", "list": "a list"}
_EXIT_USAGE = 2


class OptionParser(ArgumentParser):
    """A parser of options whose names are written out, and whose errors are short and name what is close."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and suggestions to the standard error, and exit with 2."""
        if not self.exit_on_error:
            raise ArgumentError(None, message) from ex
        guesses = [f"{name!r} is not there. {guess}" for name, guess in self._guesses(message)]
        text = "\n".join([_in_a_line(message, _short_names, _closest), *dict.fromkeys(guesses)])
        program = self.prog.replace(" [options]", "")
        print(f"error: {text}\nSee `{program} --help`.", file=sys.stderr)
        self.exit(_EXIT_USAGE)
        raise AssertionError  # pragma: no cover - exit does not return

    def _guesses(self, message: str) -> Iterator[tuple[str, str]]:
        """Yield unknown names, each with a suggestion."""
        for class_path, name in _OF_CLASS.findall(message):
            yield name, _closest(name, _parameters_of(class_path))
        for module, name in _OF_MODULE.findall(message):
            yield name, _closest(name, list(vars(import_module(module))))
        for name in _OF_ITSELF.findall(message):
            yield name, _closest(name, self._option_names())
        for group, option in _OF_GROUP.findall(message):
            name = f"{group}.{option}" if group else option
            yield name, _closest(name, self._option_names())
        for words in _OF_WORDS.findall(message):
            for word in re.findall(r"--([\w.]+)", words):
                yield word, _closest(word, self._option_names())

    def _option_names(self) -> list[str]:
        names = [option.removeprefix("--") for action in self._actions for option in action.option_strings]
        subcommands = getattr(self, "_subcommands_action", None)
        for parser in () if subcommands is None else subcommands.choices.values():
            names += parser._option_names()
        return sorted(set(names))


def _closest(name: str, names: list[str]) -> str:
    """Return a suggestion for a name: the closest, or the one that it begins, or all at its level."""
    last = name.rpartition(".")[2]
    options = [one for one in names if not one.startswith("-") and not one.endswith((".help", "+"))]
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    close = [one for one in options if one.rpartition(".")[2].startswith(last)] or close
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"There are: {', '.join(one for one in options if one.count('.') <= name.count('.'))}."


def _short_names(option: str) -> Iterable[str]:
    return CLASSES[option].named_classes() if option in CLASSES else ()


def _parameters_of(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
    return [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def _in_a_line(message: str, class_names: Callable[[str], Iterable[str]], closest: Callable[..., str]) -> str:
    """Return an error in a line, if it is about the value of an option; else as it is.

    Args:
        message: The parser's error.
        class_names: Returns the short names of classes that an option takes; none if it takes other values.
        closest: Returns a suggestion for a name, among some.
    """
    lines = message.splitlines()
    found = [(at, match) for at, line in enumerate(lines) if (match := _KEY.match(line))]
    if not found:
        return message
    outer, inner = found[0][1][2], found[-1][1][2]
    option = f"--{outer}" if len(found) == 1 or inner == outer else f"--{outer}.{inner}"
    at, match = found[-1]
    told = [match[3].strip(), *_indented(lines[at + 1 :], len(match[1]))]
    text = "\n".join(told)
    got = (_GOT.findall(text) or [""])[0]
    classes = _NO_CLASS.findall(text)
    names = sorted(class_names(outer)) if classes and len(found) == 1 else []
    if names:
        return (
            f"{option} must be a class, by its import path or short name, but got {got!r}. {closest(classes[0], names)}"
        )
    others = [line for line in dict.fromkeys(told) if not _NOISE.search(line) and not _EXPECTED.search(line)]
    others = [line for line in others if not _NO_CLASS.search(line)]
    if others:
        return f"{option}: {' '.join(others)}"
    kinds = [_WORDS.get(kind, kind) or literal for kind, literal in _EXPECTED.findall(text)]
    *first, last = dict.fromkeys(kinds or ["another value"])
    return f"{option} must be {', '.join(first)}{' or ' if first else ''}{last}, but got {got!r}."


def _indented(lines: list[str], indentation: int) -> list[str]:
    """Return the leading lines that are empty or indented by more, without bullets."""
    told = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indentation:
            break
        told.append(line.strip().removeprefix("- ").strip())
    return told
