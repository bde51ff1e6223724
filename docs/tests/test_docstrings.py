"""Every public name says what it is, what it takes, returns and raises, and stands in the reference."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "_extensions"))

from api_pages import shown_members  # noqa: E402
from messages_in_code import messages, raises_in  # noqa: E402
from public_names import PublicName, public_names  # noqa: E402

NAMES = list(public_names())
TELLS_RESULT = re.compile(r"\b(Return|Yield|Give|Whether|The |A |An |How |Build|Make|Read|Count|Find|Open|Create|Wrap)")
MOST_ERRORS_WITHOUT_REMEDY = 46  # lower it with each that is mended
MOST_WARNINGS_WITHOUT_REMEDY = 66  # most say only what is done


def functions(one: PublicName) -> Iterator[tuple[str, Any, str]]:
    """Each function of a public name, with its documentation. The arguments of a class stand in the class's own."""
    if one.kind == "function":
        yield one.path, inspect.unwrap(one.value), one.doc
    if one.kind != "class":
        return
    if inspect.isfunction(vars(one.value).get("__init__")) and "__attrs_attrs__" not in vars(one.value):
        initial = vars(one.value)["__init__"]
        yield one.path, initial, f"{one.doc}\n{initial.__doc__ or ''}"
    for name in shown_members(one.value):
        value = inspect.getattr_static(one.value, name)
        value = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(inspect.unwrap(value)):
            yield f"{one.path}.{name}", inspect.unwrap(value), inspect.getdoc(getattr(one.value, name)) or ""


def faults(where: str, function: Any, doc: str) -> Iterator[str]:
    """Say what a documentation lacks."""
    if not doc.strip():
        yield f"{where}: no documentation"
        return
    parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    missing = [name for name in parameters if not name.startswith("_") and not is_named(name, doc)]
    if missing and not is_protocol_of_others(function):
        yield f"{where}: arguments {', '.join(missing)}"
    if returns(function) and function.__name__ != "__init__" and not ("Returns:" in doc or "Yields:" in doc):
        if not TELLS_RESULT.search(doc.split("\n\n")[0]):
            yield f"{where}: what it returns"
    missing_errors = raised(function) - stated_errors(doc)
    if missing_errors:
        yield f"{where}: raises {', '.join(sorted(missing_errors))}"


def is_named(name: str, doc: str) -> bool:
    """Whether a documentation names an argument: in a section, in code, or by its words."""
    words = rf"\b{name}\b|\b{name.replace('_', ' ')}\b"
    return re.search(words, doc, re.IGNORECASE) is not None


def is_protocol_of_others(function: Any) -> bool:
    """Whether the arguments are those of a protocol of Python: `__exit__` and the like."""
    return function.__name__.startswith("__") and function.__name__ != "__init__"


def returns(function: Any) -> bool:
    annotation = function.__annotations__.get("return", "None")
    return str(annotation) not in ("None", "NoReturn", "Never", "<class 'NoneType'>")


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
    return {name for name in found if name.endswith(("Error", "Exception"))} - {"NotImplementedError", "AttributeError"}


def stated_errors(doc: str) -> set[str]:
    return {name for name in re.findall(r"\w+(?:Error|Exception)\b", doc)} | set(raises_in(doc))


@pytest.mark.parametrize("module", sorted({one.module for one in NAMES}))
def test_public_names_say_what_they_take_return_and_raise(module: str) -> None:
    own = [one for one in NAMES if one.module == module]
    found = [f"{one.path}: no documentation" for one in own if not one.doc.strip()]
    found += [fault for one in own for function in functions(one) for fault in faults(*function)]
    assert not found, "\n".join(found)


def test_errors_say_what_to_do() -> None:
    without = [one for one in messages() if not one.remedy]
    errors = [f"{one.file}:{one.line}: {one.text}" for one in without if not one.is_warning]
    warnings = [f"{one.file}:{one.line}: {one.text}" for one in without if one.is_warning]
    assert len(errors) <= MOST_ERRORS_WITHOUT_REMEDY, "\n".join(errors)
    assert len(warnings) <= MOST_WARNINGS_WITHOUT_REMEDY, "\n".join(warnings)


def takes_nothing_back(first: int) -> int:
    """Say nothing of it."""
    raise ValueError(first)


def test_what_a_documentation_lacks_is_noticed() -> None:
    found = list(faults("here", takes_nothing_back, takes_nothing_back.__doc__ or ""))
    assert found == ["here: arguments first", "here: what it returns", "here: raises ValueError"]
    assert list(faults("here", takes_nothing_back, "")) == ["here: no documentation"]
