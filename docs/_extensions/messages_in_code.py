"""The messages of errors and warnings in the sources: what they say, why, what to do about it, and where they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from public_names import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[ast.AST, ...]  # from the module to what is innermost

WARNS = frozenset({"warn_user", "warn", "rank_zero_warn", "_warn_on_rank_zero"})
NO_IMPERATIVE = re.compile(
    r"(An?|All|And|Another|As|At|Both|But|Each|Either|Every|Everything|For|From|He|However|If|In|Its?|Neither|No|None|"
    r"Nothing|Of|On|One|Only|Or|Others?|Our|Some|Such|That|The|Their|Then|There|These|They|This|Those|To|Two|We|What|When|"
    r"Where|Whether|Which|While|With|Without|Your?)\b"
).match
"""Tells words with which no sentence begins that says what to do."""

DEPTH = 4
"""How often a variable is replaced by what was assigned to it."""


@dataclass(frozen=True)
class Message:
    """One place that raises or warns."""

    file: str
    line: int
    where: str
    kind: str  # the class of the error or warning
    is_warning: bool
    text: str
    remedy: str
    cause: str


@cache
def messages() -> tuple[Message, ...]:
    """Return what the packages raise and warn of, by file and line.

    Errors without a text of their own are left out: what re-raises another's, and what Python's protocols ask for, such
    as `StopIteration`.
    """
    return tuple(
        message
        for file in sorted(ROOT.glob("packages/*/src/**/*.py"))
        for message in _messages_of(file)
    )  # fmt: skip


def _messages_of(file: Path) -> Iterator[Message]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node, scope in _walk(tree, ()):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call, kind, is_warning = node.exc, _last_name(node.exc.func), False
        elif isinstance(node, ast.Call) and _last_name(node.func) in WARNS and node.args:
            call, kind, is_warning = node, _category(node), True
        else:
            continue
        if not kind[:1].isupper():
            continue  # made by a function, whose own message is found where it is written
        text, remedy = _text_and_remedy(call, scope)
        if text:
            where = ".".join(one.name for one in scope if isinstance(one, Function | ast.ClassDef))
            path = file.relative_to(ROOT).as_posix()
            yield Message(path, node.lineno, where, kind, is_warning, text, remedy, _cause(scope, kind))


def _walk(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    for child in ast.iter_child_nodes(node):
        yield child, (*scope, node)
        yield from _walk(child, (*scope, node))


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _category(call: ast.Call) -> str:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "category"]
    given = [*call.args[1:2], *named]
    return _last_name(given[-1]) if given and isinstance(given[-1], ast.Name) else "UserWarning"


def _text_and_remedy(call: ast.Call, scope: Scope) -> tuple[str, str]:
    """Return the message and its last sentence, if that says what to do."""
    parts = must_be_parts(call, scope)
    if parts is not None:
        field, rule, where, action = parts
        return f"`{field}` must be {rule}, but got {{value}} ({{type}}) in {where}. {action}", action
    text = _template(call.args[0], scope) if call.args else ""
    text = " ".join(text.split())
    sentences = re.split(r"(?<=[.!?`\"')])\s+(?=[A-Z`])", text)
    last = sentences[-1]
    is_imperative = len(sentences) > 1 and last.endswith(".") and not NO_IMPERATIVE(last)
    return (text, last if is_imperative and last[0].isupper() else "") if " " in text else ("", "")


def must_be_parts(call: ast.Call, scope: Scope) -> list[str] | None:
    """Return field, rule, place and remedy where a message has the form of `must_be`, None for others.

    Errors that make their message so themselves take the same five arguments, or the last four if they are named after
    their field, as `LedgerError` is.
    """
    inner = _resolved(call.args[0], scope) if call.args else call
    made = inner if isinstance(inner, ast.Call) and _last_name(inner.func) == "must_be" else call
    kind = _last_name(call.func)
    if made is call and len(call.args) == 4 and kind.endswith("Error"):
        rule, _, where, action = (" ".join(_template(one, scope).split()) for one in call.args)
        return [kind.removesuffix("Error").lower(), rule, where, action]
    if len(made.args) < 5:
        return None
    field, rule, _, where, action = (" ".join(_template(one, scope).split()) for one in made.args[:5])
    return [field, rule, where, action]


def _template(node: ast.expr, scope: Scope, depth: int = DEPTH) -> str:
    """Return a text with `{name}` where something is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, scope, depth) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, scope, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, scope, depth) + _template(node.right, scope, depth)
    if isinstance(node, ast.IfExp):
        return _template(node.body, scope, depth) or _template(node.orelse, scope, depth)
    if isinstance(node, ast.Name) and depth:
        assigned = _resolved(node, scope)
        if assigned is not node and isinstance(
            assigned, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp | ast.Name
        ):
            return _template(assigned, scope, depth - 1)
    return f"{{{_placeholder(node)}}}"


def _placeholder(node: ast.expr) -> str:
    """Return a short name for what is filled in."""
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node).removeprefix("self.").lstrip("_")
    if isinstance(node, ast.Call):
        inner = [one for one in [*node.args, node.func] if not isinstance(one, ast.Constant | ast.GeneratorExp)]
        return _placeholder(inner[0])
    if isinstance(node, ast.Subscript | ast.Starred):
        return _placeholder(node.value)
    return "..."


def _resolved(node: ast.expr, scope: Scope) -> ast.expr:
    """Return what was last assigned to a name above, in the function or the module; the node if nothing was."""
    if not isinstance(node, ast.Name):
        return node
    for outer in reversed(scope):
        if isinstance(outer, Function | ast.Module):
            statements = ast.walk(outer) if isinstance(outer, Function) else iter(outer.body)
            assigns = [one for one in statements if isinstance(one, ast.Assign) and one.lineno <= node.lineno]
            found = [(one.lineno, value) for one in assigns for value in _assigned(node.id, one)]
            if found:
                return max(found, key=lambda pair: pair[0])[1]
    return node


def _assigned(name: str, assign: ast.Assign) -> Iterator[ast.expr]:
    """Yield what an assignment gives to a name, also as one of several."""
    for target in assign.targets:
        pairs = [(target, assign.value)]
        if isinstance(target, ast.Tuple) and isinstance(assign.value, ast.Tuple):
            pairs = list(zip(target.elts, assign.value.elts, strict=False))
        yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


def _cause(scope: Scope, kind: str) -> str:
    """Return the condition that the documentation of the function or class around states for a kind of error."""
    for outer in reversed(scope):
        if isinstance(outer, Function | ast.ClassDef):
            conditions = raises_in(ast.get_docstring(outer) or "").get(kind)
            if conditions:
                return conditions
    return ""


def raises_in(doc: str) -> dict[str, str]:
    """Return the conditions by class of error from the section `Raises:` of a documentation."""
    section = re.search(r"^Raises:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^ {4}([\w., ]+):\s+((?:.+\n?)(?: {5,}.+\n?)*)", section[1], re.MULTILINE)
    return {
        name.strip().rpartition(".")[2]: " ".join(text.split()) for names, text in entries for name in names.split(",")
    }
