"""A parser of options that suggests the closest name for an unknown one."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

_OF_CLASS = re.compile(r"Problem with given class_path '([\w.]+)':\s+Option '([^']+)' is not accepted")
_OF_MODULE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")
_OF_GROUP = re.compile(r"(?:Group '([\w.]+)'|Subcommand '\w+'|Parser) does not accept option '([^']+)'")
_OF_ITSELF = re.compile(r"\AOption '([^']+)' is not accepted")  # a parser that was made for a class
_OF_WORDS = re.compile(r"unrecognized arguments: (.*)", re.IGNORECASE)
_PROGRAM = "python -m camshaft.trainer"
_EXIT_USAGE = 2


class OptionParser(ArgumentParser):
    """A parser of options whose names are written out, and whose errors are short and name what is close."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(allow_abbrev=False, **arguments)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and suggestions to the standard error, and exit with 2."""
        guesses = [f"{name!r} is not there. {guess}" for name, guess in self._guesses(message)]
        text = "\n".join([message, *dict.fromkeys(guesses)])
        print(f"error: {text}\nSee `{_PROGRAM} --help` and `{_PROGRAM} VERB --help`.", file=sys.stderr)
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
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(names)}."


def _parameters_of(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
    return [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
