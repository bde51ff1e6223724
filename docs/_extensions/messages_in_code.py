"""The messages of errors and warnings in the sources: what they say, why, what to do about it, and where they stand."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache

from public_names import ROOT, public_names
from sources import Function, Place, Scope, Sources, last_name, resolved

DEPTH = 4
"""How often a variable is replaced by what was assigned to it."""

WARNS = frozenset({"warn_user", "warn", "rank_zero_warn"})
NO_IMPERATIVE = re.compile(
    r"(An?|All|And|Another|As|At|Both|But|Each|Either|Every|Everything|For|From|He|However|If|In|Its?|Neither|No|None|"
    r"Nothing|Of|On|One|Only|Or|Others?|Our|Some|Such|That|The|Their|Then|There|These|They|This|Those|To|Two|We|What|When|"
    r"Where|Whether|Which|While|With|Without|Your?)\b"
).match
"""Tells words with which no sentence begins that says what to do."""

TELLS_ANOTHER = re.compile(r"(\{[\w.]+\}: )?\{error\}( .*)?").fullmatch
"""Tells texts that begin with another error's, and so with its remedy."""

TELLS_FOR_EACH = re.compile(r".*\S (\{(?:\w+\.)*(?:advice|action)\})").fullmatch
"""Tells texts that end with a remedy that differs from case to case."""

PYTHONS_OWN = re.compile(r"(module |type object )?\{[^{}]*\}( object)? has no attribute \{name\}").fullmatch
"""Tells what Python itself says of a name that is not there."""


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
    is_caught: bool  # by the code around, so that users see at most its text, in another message


@cache
def messages() -> tuple[Message, ...]:
    """Return what the packages raise and warn of, by file and line."""
    public = frozenset(one.name for one in public_names())
    return messages_of(Sources(ROOT, "packages/*/src/**/*.py", public))


def messages_of(sources: Sources) -> tuple[Message, ...]:
    """Return what some files raise and warn of, by file and line.

    Errors without a text of their own are left out: what re-raises another's, and what Python's protocols ask for, such
    as `StopIteration` and the `AttributeError` of a module.
    """
    found = (_message(sources, place) for place in sources.places)
    return tuple(message for message in found if message is not None)


def _message(sources: Sources, place: Place) -> Message | None:
    node, scope = place.node, place.scope
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        call, kind, is_warning = node.exc, last_name(node.exc.func), False
    elif isinstance(node, ast.Call) and last_name(node.func) in WARNS and node.args:
        call, kind, is_warning = node, _category(node), True
    else:
        return None
    if not kind[:1].isupper():
        return None  # made by a function, whose own message is found where it is written
    text, remedy = _text_and_remedy(call, scope)
    if not text or (kind == "AttributeError" and PYTHONS_OWN(text)):
        return None
    where = ".".join(one.name for one in scope if isinstance(one, Function | ast.ClassDef))
    path = place.file.relative_to(sources.root).as_posix()
    is_caught = not is_warning and sources.is_caught(place, kind)
    cause = _cause(scope, sources.kinds(kind))
    return Message(path, node.lineno, where, kind, is_warning, text, remedy, cause, is_caught)


def _category(call: ast.Call) -> str:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "category"]
    given = [*call.args[1:2], *named]
    return last_name(given[-1]) if given and isinstance(given[-1], ast.Name) else "UserWarning"


def _text_and_remedy(call: ast.Call, scope: Scope) -> tuple[str, str]:
    """Return the message and its last sentence, if that says what to do."""
    parts = must_be_parts(call, scope)
    if parts is not None:
        field, rule, where, action = parts
        return f"`{field}` must be {rule}, but got {{value}} ({{type}}) in {where}. {action}", action
    text = _template(call.args[0], scope) if call.args else ""
    first_line, text = " ".join(text.partition("\n")[0].split()), " ".join(text.split())
    if " " not in text:
        return "", ""
    if TELLS_ANOTHER(text):
        return text, "{error}"
    return text, _remedy(text) or _remedy(first_line)


def _remedy(text: str) -> str:
    """Return the last sentence of a text, if it says what to do."""
    varying = TELLS_FOR_EACH(text)
    if varying is not None:
        return varying[1]
    sentences = re.split(r"(?<=[.!?`\"')}])\s+(?=[A-Z`])", text)
    last = sentences[-1]
    is_imperative = last[:1].isupper() and last.endswith(".") and not NO_IMPERATIVE(last)
    return last if len(sentences) > 1 and (is_imperative or last.startswith("Did you mean ")) else ""


def must_be_parts(call: ast.Call, scope: Scope) -> list[str] | None:
    """Return field, rule, place and remedy where a message has the form of `must_be`, None for others.

    Errors that make their message so themselves take the same five arguments, or the last four if they are named after
    their field, as `LedgerError` is.
    """
    inner = resolved(call.args[0], scope) if call.args else call
    made = inner if isinstance(inner, ast.Call) and last_name(inner.func) == "must_be" else call
    kind = last_name(call.func)
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
        assigned = resolved(node, scope)
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


def _cause(scope: Scope, kinds: list[str]) -> str:
    """Return the condition that the documentation of the function or class around states for a kind of error.

    Args:
        scope: What is around.
        kinds: The class of the error and its bases.
    """
    for outer in reversed(scope):
        if isinstance(outer, Function | ast.ClassDef):
            doc = ast.get_docstring(outer) or ""
            conditions = {**raised_by_sentence(doc), **raises_in(doc)}
            stated = [conditions[kind] for kind in kinds if kind in conditions]
            if stated:
                return stated[0]
    return ""


def raised_by_sentence(doc: str) -> dict[str, str]:
    """Return the conditions by class of error from sentences such as "Raise `ValueError` if it is empty"."""
    conditions: dict[str, str] = {}
    for sentence in re.split(r"\n\n|(?<=\.)\s", doc):
        if not re.search(r"\b[Rr]aises?\b", sentence):
            continue
        _, *parts = re.split(r"`?\b(\w+Error)\b`?", " ".join(sentence.split()))
        condition = ""
        for name, text in reversed(list(zip(parts[::2], parts[1::2], strict=True))):
            found = re.search(r"\b(?:if|unless|where|for) [^;]+", text)
            condition = "" if text.strip() != "or" else condition
            if found is not None:
                condition = re.sub(r",?( and)?$", "", found[0].strip().rstrip("."))
                condition = f"{condition[0].upper()}{condition[1:]}."
            if condition:
                conditions[name] = condition
    return conditions


def raises_in(doc: str) -> dict[str, str]:
    """Return the conditions by class of error from the section `Raises:` of a documentation."""
    section = re.search(r"^Raises:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^ {4}([\w., ]+):\s+((?:.+\n?)(?: {5,}.+\n?)*)", section[1], re.MULTILINE)
    return {
        name.strip().rpartition(".")[2]: " ".join(text.split()) for names, text in entries for name in names.split(",")
    }
