"""The order of hooks as data: the life cycle of each verb, from which trees, diagrams and checks are made."""

from camshaft.hooks_core.grammar.conditions import Condition, Variation
from camshaft.hooks_core.grammar.drawing import mermaid, tree
from camshaft.hooks_core.grammar.life_cycles import after_an_exception, life_cycle
from camshaft.hooks_core.grammar.nodes import (
    Call,
    Either,
    If,
    Maybe,
    Node,
    Repeat,
    Seq,
    Set,
    Within,
    hooks_in,
    parts,
    without,
)

__all__ = [
    "Call",
    "Condition",
    "Either",
    "If",
    "Maybe",
    "Node",
    "Repeat",
    "Seq",
    "Set",
    "Variation",
    "Within",
    "after_an_exception",
    "hooks_in",
    "life_cycle",
    "mermaid",
    "parts",
    "tree",
    "without",
]
