from __future__ import annotations

import ast
import inspect

import pytest

from camshaft.hooks_core import CATALOGUE, CheckpointHooks, DataHooks, Hooks, ModelHooks, resolve
from camshaft.hooks_core.bases import ModuleSteps

CURRENT = [spec for spec in CATALOGUE.values() if spec.kind != "state"]


def typed_attributes() -> dict[str, str]:
    """Return what `Hooks` declares to type checkers of each hook, as source."""
    body = next(node.body for node in ast.parse(inspect.getsource(Hooks)).body if isinstance(node, ast.ClassDef))
    typed = next(node.body for node in body if isinstance(node, ast.If))
    declared = {}
    for statement in typed:
        if isinstance(statement, ast.Assign):
            declared[ast.unparse(statement.targets[0])] = ast.unparse(statement.value)
        elif isinstance(statement, ast.AnnAssign):
            declared[ast.unparse(statement.target)] = ast.unparse(statement.annotation)
    return declared


def stating_class(name: str) -> type:
    return next(base for base in (DataHooks, ModelHooks, ModuleSteps, CheckpointHooks) if hasattr(base, name))


def test_a_type_checker_knows_every_hook_of_today_by_the_method_that_states_it() -> None:
    expected = {}
    for spec in CURRENT:
        kind = "_Event" if spec.kind == "event" else "_OneOwner"
        expected[spec.name] = f"{kind}({stating_class(spec.name).__name__}.{spec.name})"
    expected["lr_scheduler_step"] = "Callable[..., Any] | None"
    assert typed_attributes() == expected


def test_without_receivers_events_do_nothing_and_the_rest_is_none() -> None:
    hooks = resolve()
    for spec in CURRENT:
        value = getattr(hooks, spec.name)
        if spec.kind == "event":
            assert value(*spec.parameters) is None
        else:
            assert value is None


def test_an_unknown_hook_is_an_attribute_error_that_says_what_to_do() -> None:
    with pytest.raises(
        AttributeError, match=r"got 'on_lunch' \(str\) in Hooks\. Register the hook before the run starts"
    ):
        _ = resolve().on_lunch
