"""Every public name says what it is, what it takes, returns and raises, and stands in the reference."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from api_pages import reference_pages, shown_members
from messages_in_code import messages, raises_in
from public_names import PublicName, public_names, text_below

from camshaft.hooks_core.eras.hooks import hooks_of_eras

NAMES = list(public_names())
HOOKS = hooks_of_eras()
TELLS_RESULT = re.compile(
    r"\A(Return|Yield|Give|Whether|The|A|An|How|Build|Make|Read|Count|Find|Open|Create|Wrap)\b|\b(return|Returns|Yields)\b"
)
NOT_STATED = {"NotImplementedError", "AttributeError", "AssertionError"}
ELSEWHERE = re.compile(r"[Ss]ee `|[Aa]rguments( and \w+)? (are |as )?those of `|options are those of `")
CLASSES = {one.name for one in NAMES if one.kind == "class"}
RETURN_NOTHING = ("None", "NoReturn", "Never", "<class 'NoneType'>", "Iterator[None]")
# Objects of the domain, which a description could only repeat.
SELF_EVIDENT = {
    *("module", "model", "trainer", "optimizer", "receiver", "klass", "instance", "hparams", "parser"),
    *("stage", "verb", "name", "where"),
}
# That of the conformance scenarios, raised on purpose, and that of attributes, whose remedy is a row of a table.
MOST_ERRORS_WITHOUT_REMEDY = 2
# That of our unpickler, which pickle calls (`read_checkpoint` raises its own), and that by which Optuna ends a trial.
CAUGHT_BY_LIBRARIES = {"UnpicklingError", "TrialPruned"}
MOST_WARNINGS_WITHOUT_REMEDY = 1  # that of arguments of earlier releases, each of which says today's


def functions(one: PublicName) -> Iterator[tuple[str, Any, str]]:
    """Each function of a public name, with its documentation. The arguments of a class stand in the class's own."""
    if one.kind == "function":
        yield one.path, inspect.unwrap(one.value), one.doc
    if one.kind != "class":
        return
    initial = vars(one.value).get("__init__")
    has_own = initial is not None and initial.__module__.startswith("camshaft.")
    if has_own and not issubclass(one.value, BaseException):  # of errors, the attributes are described
        of_bases = [base.__doc__ or "" for base in one.value.__mro__[1:] if base.__module__.startswith("camshaft.")]
        yield one.path, initial, "\n".join([one.doc, initial.__doc__ or "", *of_bases])
    for name in shown_members(one.value):
        value = inspect.getattr_static(one.value, name)
        value = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(value):
            yield f"{one.path}.{name}", value, documentation_of(one.value, name)
        elif not re.search(rf"^\s*(\w+, )*{name}(, \w+)*:", one.doc, re.MULTILINE):  # else the class describes it
            yield f"{one.path}.{name}", None, documentation_of(one.value, name)


def documentation_of(cls: type, name: str) -> str:
    """Return what is said of a method, also by the classes whose method it overrides."""
    bases = [base for base in cls.__mro__ if name in vars(base)]
    said = [vars(base)[name].__doc__ or attribute_docs(base).get(name, "") for base in bases]
    return "\n".join(map(inspect.cleandoc, said))


@cache
def attribute_docs(cls: type) -> dict[str, str]:
    """Return the texts below the assignments in a class's body; an alias has that of its original."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(cls))).body)
    found: dict[str, str] = {}
    for number, node in enumerate(body):
        if isinstance(node, ast.Assign):
            text = text_below(body, number) or found.get(ast.unparse(node.value), "")
            found.update({target.id: text for target in node.targets if isinstance(target, ast.Name)})
    return found


def faults(where: str, function: Any, doc: str) -> Iterator[str]:
    """Say what a documentation lacks. That of a hook says what it returns; its page has the arguments."""
    if not doc.strip():
        yield f"{where}: no documentation"
    if not doc.strip() or function is None:
        return
    missing = [name for name in arguments(function) if not is_named(name, doc)]
    if missing and function.__name__ not in HOOKS and not ELSEWHERE.search(doc):
        yield f"{where}: arguments {', '.join(missing)}"
    if returns(function) and not any(pattern.search(doc) for pattern in (TELLS_RESULT, ELSEWHERE)):
        yield f"{where}: what it returns"
    missing_errors = raised(function) - stated_errors(doc)
    if missing_errors:
        yield f"{where}: raises {', '.join(sorted(missing_errors))}"


def arguments(function: Any) -> list[str]:
    """Return the names of the arguments that a documentation has to name.

    Those are all but `self`, what is passed on as `*args` and `**kwargs`, what its type describes (a public class of
    ours), what is self-evident, and the only argument of a function whose first line speaks of it.
    """
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    named = [one for one in named if one.name not in ("self", "cls", *SELF_EVIDENT) and one.name[0] != "_"]
    if len(named) < 2 and function.__name__ != "__init__":
        return []
    return [one.name for one in named if str(one.annotation).removesuffix(" | None") not in CLASSES]


def is_named(name: str, doc: str) -> bool:
    """Whether a documentation names an argument: in a section, in code, or by its words."""
    words = name.replace("_", " ").removesuffix(" idx")
    return re.search(rf"\b{name}\b|\b{words}", doc, re.IGNORECASE) is not None


def returns(function: Any) -> bool:
    annotation = function.__annotations__.get("return", "None")
    return function.__name__ not in HOOKS and str(annotation) not in RETURN_NOTHING


def raised(function: Any) -> set[str]:
    """Return the errors that a function raises in its own body and does not catch there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):
        return set()
    found = {
        ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None
    }
    suppressed = {
        ast.unparse(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "suppress"
        for argument in node.args
    }
    return {name for name in found - suppressed if name.endswith(("Error", "Exception"))} - {
        "NotImplementedError",
        "AttributeError",
        "AssertionError",
    }


def stated_errors(doc: str) -> set[str]:
    return {name for name in re.findall(r"\w+(?:Error|Exception)\b", doc)} | set(raises_in(doc))


@pytest.mark.parametrize("module", sorted({one.module for one in NAMES}))
def test_public_names_say_what_they_take_return_and_raise(module: str) -> None:
    own = [one for one in NAMES if one.module == module]
    found = [f"{one.path}: no documentation" for one in own if not one.doc.strip()]
    found += [fault for one in own for function in functions(one) for fault in faults(*function)]
    assert not found, "\n".join(found)


def test_every_public_name_stands_in_the_reference() -> None:
    pages = "\n".join(line for _, lines in reference_pages() for line in lines)
    described = set()
    module = ""
    for line in pages.splitlines():
        module = line.removeprefix(".. py:currentmodule:: ") if line.startswith(".. py:currentmodule:: ") else module
        found = re.match(r"\.\. (autoclass|autofunction|py:data):: (\w+)$", line)
        if found:
            described.add(f"{module}.{found[2]}")
    assert described == {one.path for one in NAMES}
    assert len(NAMES) > 500


def test_errors_say_what_to_do() -> None:
    seen = [one for one in messages() if not one.is_caught and one.kind not in CAUGHT_BY_LIBRARIES]
    without = [one for one in seen if not one.remedy]
    errors = [f"{one.file}:{one.line}: {one.text}" for one in without if not one.is_warning]
    warnings = [f"{one.file}:{one.line}: {one.text}" for one in without if one.is_warning]
    assert len(errors) <= MOST_ERRORS_WITHOUT_REMEDY, "\n".join(errors)
    assert len(warnings) <= MOST_WARNINGS_WITHOUT_REMEDY, "\n".join(warnings)


def takes_two(first: int, second: int) -> int:
    """Say nothing of it."""
    raise ValueError(first + second)


def test_what_a_documentation_lacks_is_noticed() -> None:
    found = list(faults("here", takes_two, takes_two.__doc__ or ""))
    assert found == ["here: arguments first, second", "here: what it returns", "here: raises ValueError"]
    assert list(faults("here", takes_two, "")) == ["here: no documentation"]
