"""A life cycle as a Mermaid flowchart."""

from __future__ import annotations

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within, hooks_in
from camshaft.hooks_core.grammar.tree import receivers_in_words

_Ends = list[tuple[str, str]]  # loose ends: a box, and what the arrow that leaves it says


def mermaid(title: str, node: Node, *, era: str | None = None, catalogue: Catalogue = CATALOGUE) -> str:
    """Draw a life cycle as a flowchart, for documentation.

    Args:
        title: What the first box says.
        node: The life cycle.
        era: The era whose receivers are shown; None for today's.
        catalogue: The hooks.

    Returns:
        The source of the diagram.
    """
    chart = _Chart(era, catalogue)
    ends = chart.draw(node, [(chart.box(f'(["{title}"])', []), "")])
    chart.box(f'(["end of {title}"])', ends)
    return "\n".join(["flowchart TD", *chart.lines])


class _Chart:
    def __init__(self, era: str | None, catalogue: Catalogue) -> None:
        self.lines: list[str] = []
        self._era = era
        self._catalogue = catalogue
        self._num_boxes = 0
        self._depth = 1

    def box(self, shape: str, ends: _Ends) -> str:
        """Add a box and the arrows that lead to it; returns its name."""
        name = self._name()
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
            case Repeat(body=body, each=each, until=until):
                again = self.box(f'{{{{"for each {each}{f", until {_plain(until)}" if until else ""}"}}}}', ends)
                self._arrows(self.draw(body, [(again, "next")]), again)
                return [(again, "none left")]
            case Maybe(body=body, when=when):
                choice = self.box(f'{{"{_plain(when)}"}}', ends)
                return [*self.draw(body, [(choice, "yes")]), (choice, "no")]
            case If(condition=condition, body=body, holds=holds):
                choice = self.box(f'{{"{"if" if holds else "unless"} {_plain(condition)}"}}', ends)
                return [*self.draw(body, [(choice, "yes")]), (choice, "no")]
            case Either(options=options):
                choice = self.box('{"one of"}', ends)
                return [
                    end
                    for option in options
                    for end in self.draw(option, [(choice, option.label if isinstance(option, Seq) else "")])
                ]

    def _within(self, hook: str, body: Node, ends: _Ends) -> _Ends:
        name = self._name()
        self._line(f'subgraph {name}["{hook}"]')
        self._depth += 1
        start = self.box(f'["enter {self._hook(hook)}"]', [])
        end = self.box(f'["leave {hook}"]', self.draw(body, [(start, "")]))
        self._depth -= 1
        self._line("end")
        self._arrows(ends, start)
        return [(end, "")]

    def _hook(self, hook: str) -> str:
        return f"{hook}<br/><small>{', '.join(receivers_in_words(self._catalogue[hook], self._era))}</small>"

    def _name(self) -> str:
        self._num_boxes += 1
        return f"n{self._num_boxes}"

    def _arrows(self, ends: _Ends, target: str) -> None:
        for source, text in ends:
            self._line(f"{source} -->|{text}| {target}" if text else f"{source} --> {target}")

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)


def _plain(text: str) -> str:
    return text.replace("`", "")
