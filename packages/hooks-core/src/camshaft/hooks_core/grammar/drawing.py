"""Drawings of a life cycle: a tree of text, one hook a line with its receivers, and a Mermaid flowchart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within, hooks_in
from camshaft.hooks_core.spec import HookSpec, Receiver

_GAP = "  "
_LINE_LENGTH = 60
"""The most characters of hooks that share a line."""


@attrs.frozen
class _Row:
    text: str
    receivers: str = ""
    kind: str = ""
    notes: tuple[str, ...] = ()
    children: tuple[_Row, ...] = ()


def tree(title: str, node: Node, *, catalogue: Catalogue = CATALOGUE, compact: bool = False) -> str:
    """Draw a life cycle.

    Args:
        title: The first line.
        node: The life cycle.
        catalogue: The hooks, with the receivers that are shown.
        compact: Whether neighbours with the same receivers share a line.

    Returns:
        Lines of text. A hook's receivers stand in brackets, in the order in which they are called.
    """
    rows = _rows(node, catalogue)
    lines = list(_lines(_joined(rows) if compact else rows, ""))
    width = max((len(text) for text, beside in lines if beside), default=0)
    return "\n".join([title, *(f"{text:{width}}{_GAP}{rest}".rstrip() if rest else text for text, rest in lines)])


def receivers_in_words(spec: HookSpec) -> list[str]:
    """Return a hook's receivers in the order in which they are called."""
    words = ["callbacks" if kind is Receiver.CALLBACK else str(kind) for kind in spec.receivers]
    if spec.kind in ("provide", "transform", "override", "step"):
        return [" or ".join(words)]
    if spec.name == "on_train_epoch_end" and words[0] == "callbacks":
        return ["callbacks that do not monitor", *words[1:], "callbacks that monitor"]
    return words


def _joined(rows: Sequence[_Row]) -> list[_Row]:
    """Return rows in which plain neighbours with the same receivers are one, at all depths."""
    joined: list[_Row] = []
    for row in rows:
        last = joined[-1] if joined else _Row("", "none")
        is_plain = not (last.notes or row.notes or last.children or row.children)
        is_like = (row.receivers, row.kind) == (last.receivers, last.kind)
        if is_plain and is_like and len(text := f"{last.text}, {row.text}") <= _LINE_LENGTH:
            joined[-1] = attrs.evolve(last, text=text)
        else:
            joined.append(attrs.evolve(row, children=tuple(_joined(row.children))))
    return joined


def _lines(rows: Sequence[_Row], indent: str) -> list[tuple[str, str]]:
    """Return the lines of a tree, each with the text beside it."""
    lines: list[tuple[str, str]] = []
    for row in rows:
        branch, below = ("└── ", "    ") if row is rows[-1] else ("├── ", "│   ")
        beside = _GAP.join(part for part in (row.receivers, ", ".join(row.notes)) if part)
        lines += [(indent + branch + row.text, beside), *_lines(row.children, indent + below)]
    return lines


def _rows(node: Node, catalogue: Catalogue) -> list[_Row]:
    match node:
        case Call(hook=hook):
            return [_hook(catalogue[hook])]
        case Within(hook=hook, body=body):
            note = "encloses what follows, where it is overridden" if catalogue[hook].kind == "override" else "encloses"
            return [attrs.evolve(_hook(catalogue[hook], note), children=tuple(_rows(body, catalogue)))]
        case Seq(items=items, label=label):
            rows = [row for item in items for row in _rows(item, catalogue)]
            return [_Row(f"[{label}]", children=tuple(rows))] if label and rows else rows
        case Either(options=options):
            rows = [row for option in options for row in _rows(option, catalogue)]
            return [_Row("[one of]", children=tuple(rows))] if rows else []
        case Repeat() | Maybe() | If():
            return _under(_label(node), _rows(node.body, catalogue))
        case Set():
            return []


def _label(node: Repeat | Maybe | If) -> str:
    """Return when a part happens, in words."""
    match node:
        case Repeat(each=each, until=until):
            return f"for each {each}" + (f", until {until}" if until else "")
        case If(condition=condition, holds=holds):
            return f"{'if' if holds else 'unless'} {condition}"
        case Maybe(when=when):
            return when


def _under(label: str, rows: list[_Row]) -> list[_Row]:
    """Return rows under a label, or one row with the label beside it."""
    if len(rows) == 1 and not rows[0].text.startswith("["):
        return [attrs.evolve(rows[0], notes=(*rows[0].notes, label))]
    return [_Row(f"[{label}]", children=tuple(rows))] if rows else []


def _hook(spec: HookSpec, *notes: str) -> _Row:
    words = receivers_in_words(spec)
    special = ("SPECIAL CASE",) if len(words) > len(spec.receivers) else ()
    return _Row(f"{spec.name}()", " ".join(f"[{word}]" for word in words), spec.kind, (*special, *notes))


_Ends = list[tuple[str, str]]  # loose ends: a box, and what the arrow that leaves it says


def mermaid(title: str, node: Node, *, catalogue: Catalogue = CATALOGUE) -> str:
    """Draw a life cycle as a flowchart, for documentation.

    Args:
        title: What the first box says.
        node: The life cycle.
        catalogue: The hooks.

    Returns:
        The source of the diagram.
    """
    chart = _Chart(catalogue)
    ends = chart.draw(node, [(chart.box(f'(["{title}"])', []), "")])
    chart.box(f'(["end of {title}"])', ends)
    return "\n".join(["flowchart TD", *chart.lines])


class _Chart:
    def __init__(self, catalogue: Catalogue) -> None:
        self.lines: list[str] = []
        self._catalogue = catalogue
        self._names = (f"n{number}" for number in itertools.count(1))
        self._indent = "    "

    def box(self, shape: str, ends: _Ends) -> str:
        """Add a box and the arrows that lead to it; returns its name."""
        name = next(self._names)
        self._line(f"{name}{shape}")
        self._arrows(ends, name)
        return name

    def draw(self, node: Node, ends: _Ends) -> _Ends:
        """Add a part behind loose ends; returns the new ones."""
        match node:
            case Call(hook=hook):
                return [(self.box(f'["{self._hook(hook)}"]', ends), "")]
            case Seq(items=items):
                for item in items:
                    ends = self.draw(item, ends)
                return ends
            case Set():
                return ends
            case Within(hook=hook, body=body):
                return self._within(hook, body, ends)
            case _ if next(hooks_in(node), None) is None:
                return ends
            case Repeat(body=body):
                again = self.box(f'{{{{"{_label(node).replace("`", "")}"}}}}', ends)
                self._arrows(self.draw(body, [(again, "next")]), again)
                return [(again, "none left")]
            case Maybe(body=body) | If(body=body):
                choice = self.box(f'{{"{_label(node).replace("`", "")}"}}', ends)
                return [*self.draw(body, [(choice, "yes")]), (choice, "no")]
            case Either(options=options):
                choice = self.box('{"one of"}', ends)
                labels = [(option, option.label if isinstance(option, Seq) else "") for option in options]
                return [end for option, label in labels for end in self.draw(option, [(choice, label)])]

    def _within(self, hook: str, body: Node, ends: _Ends) -> _Ends:
        self._line(f'subgraph {next(self._names)}["{hook}"]')
        outer, self._indent = self._indent, self._indent + "    "
        start = self.box(f'["enter {self._hook(hook)}"]', [])
        end = self.box(f'["leave {hook}"]', self.draw(body, [(start, "")]))
        self._indent = outer
        self._line("end")
        self._arrows(ends, start)
        return [(end, "")]

    def _hook(self, hook: str) -> str:
        return f"{hook}<br/><small>{', '.join(receivers_in_words(self._catalogue[hook]))}</small>"

    def _arrows(self, ends: _Ends, target: str) -> None:
        for source, text in ends:
            self._line(f"{source} -->|{text}| {target}" if text else f"{source} --> {target}")

    def _line(self, text: str) -> None:
        self.lines.append(self._indent + text)
