"""Life cycles with the hooks that third parties registered, in the places that they stated."""

from __future__ import annotations

from camshaft.hooks_core.catalogue import Catalogue
from camshaft.hooks_core.grammar.nodes import Call, Either, Maybe, Node, Repeat, Seq, Within, with_parts


def placed(node: Node, catalogue: Catalogue) -> Node:
    """Return a life cycle with the registered hooks of a catalogue that have a place.

    Hooks in one place may be called in the order in which they were registered.

    Args:
        node: The life cycle.
        catalogue: The hooks.
    """
    if not catalogue.places:
        return node
    own = with_parts(node, lambda part: placed(part, catalogue))
    return _with_neighbours(own, catalogue) if isinstance(own, Call | Within) else own


def _with_neighbours(own: Call | Within, catalogue: Catalogue) -> Node:
    """Return a call with the hooks that have their places beside it, each with those beside that."""

    def beside(moment: str) -> tuple[Node, ...]:
        return tuple(
            _repeated(_with_neighbours(Call(name), catalogue), place.times, f"call of {name}")
            for name, place in catalogue.places.items()
            if (place.moment, place.hook) == (moment, own.hook)
        )

    first, inside, last = map(beside, ("before", "within", "after"))
    within: Node = own
    if inside and isinstance(own, Call):
        within = Within(own.hook, Seq(*inside), call=own, alone=Seq())
    elif inside and isinstance(own, Within):
        either = Either(Seq(*inside, own.body), Seq(own.body, *inside))
        within = Within(own.hook, either, call=own.call, alone=own.body if own.alone is None else own.alone)
    return Seq(*first, within, *last) if first or last else within


def _repeated(node: Node, times: str, each: str) -> Node:
    if times == "any":
        return Repeat(node, each=each)
    return Maybe(node, when="if it is called") if times == "at_most_once" else node
