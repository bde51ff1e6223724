"""The order of hooks as data: the life cycle of each verb, from which trees, diagrams and checks are made."""

from camshaft.hooks_core.grammar.drawing import mermaid, tree
from camshaft.hooks_core.grammar.life_cycles import after_an_exception, life_cycle
from camshaft.hooks_core.grammar.places import placed

__all__ = ["after_an_exception", "life_cycle", "mermaid", "placed", "tree"]
