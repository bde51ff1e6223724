from __future__ import annotations

import pytest

from camshaft.hooks_core import CATALOGUE, Hooks, resolve

CURRENT = [spec for spec in CATALOGUE.values() if spec.is_current and spec.kind != "state"]


FACTS = ["_taken", "readings"]
OF_ERAS = [spec for spec in CATALOGUE.values() if not spec.is_current and not spec.today]
CALLED = [*CURRENT, *OF_ERAS]


def test_hooks_declares_exactly_what_is_called_by_name_today_or_by_who_runs_eras() -> None:
    assert sorted(Hooks.__annotations__) == sorted([*(spec.name for spec in CALLED), *FACTS])


@pytest.mark.parametrize("spec", CALLED, ids=lambda spec: spec.name)
def test_annotation_says_whether_a_hook_is_always_callable(spec: object) -> None:
    assert Hooks.__annotations__[spec.name] == ("_Event" if spec.kind == "event" else "_OneOwner")  # type: ignore[attr-defined]


def test_without_receivers_events_do_nothing_and_the_rest_is_none() -> None:
    hooks = resolve()
    for spec in CALLED:
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
