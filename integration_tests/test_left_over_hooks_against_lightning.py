"""Hooks that Lightning 2 no longer calls, left over in classes for it, change nothing under the import names."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from comparison import drawing
from comparison.comparing import Mismatch, compare
from comparison.configuration import Configuration
from comparison.frameworks import IMPORT_NAMES, LIGHTNING, Framework
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from camshaft.hooks_core import Receiver
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, EVERYDAY_NAMES

REFUSED = {"training_epoch_end", "validation_epoch_end", "test_epoch_end"}
"""Hooks with which Lightning refuses a module."""
DEAD = {
    kind: [
        spec.name
        for spec in EARLIER_HOOKS.values()
        if kind in spec.receivers and spec.name not in REFUSED | EVERYDAY_NAMES
    ]
    for kind in (Receiver.MODULE, Receiver.CALLBACK)
}


def left_over(base: Any, names: frozenset[str], kind: Receiver) -> Any:
    """A subclass with these hooks, each of which changes the loss and its own arguments' meaning where it is called."""

    def of_module(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self.scale *= 0.5
        return arguments[0] * 0.5 if arguments else None

    def of_callback(self: Any, trainer: Any, pl_module: Any = None) -> None:
        pl_module.scale *= 0.5

    def named(name: str) -> Any:
        parameters = ", ".join(("self", *EARLIER_HOOKS[name].parameters))
        namespace: dict[str, Any] = {"called": of_module}
        exec(f"def {name}({parameters}): return called({parameters})", namespace)
        return namespace[name]

    is_module = kind is Receiver.MODULE
    return type(base.__name__, (base,), {name: named(name) if is_module else of_callback for name in names})


def both(of_module: frozenset[str], of_callback: frozenset[str]) -> dict[str, Framework]:
    return {
        word: attrs.evolve(
            framework,
            module=left_over(framework.module, of_module, Receiver.MODULE),
            callback=left_over(framework.callback, of_callback, Receiver.CALLBACK),
        )
        for word, framework in (("lightning", LIGHTNING), ("ours", IMPORT_NAMES))
    }


@settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(
    drawing.fits(),
    st.frozensets(st.sampled_from(DEAD[Receiver.MODULE]), max_size=6),
    st.frozensets(st.sampled_from(DEAD[Receiver.CALLBACK]), max_size=3),
)
def test_fit_goes_as_on_lightning(
    configuration: Configuration, of_module: frozenset[str], of_callback: frozenset[str]
) -> None:
    compare(configuration, **both(of_module, of_callback))


@pytest.mark.parametrize("name", [*DEAD[Receiver.MODULE], ""])
def test_each_hook_that_lightning_ignores_is_ignored(name: str) -> None:
    compare(Configuration(num_batches=2), **both(frozenset({name} - {""}), frozenset()))


def test_the_comparison_sees_a_hook_that_is_called() -> None:
    frameworks = both(frozenset({"on_epoch_start"}), frozenset())
    declared = type("Declared", (frameworks["ours"].module,), {"hook_era": "1.9"})
    with pytest.raises(Mismatch):
        compare(Configuration(), **{**frameworks, "ours": attrs.evolve(frameworks["ours"], module=declared)})
