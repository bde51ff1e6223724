from __future__ import annotations

from camshaft.hooks_core.dispatch.implementation import ReceiverNames


class Watch:
    pass


def test_receivers_of_one_class_are_numbered_and_keep_their_names() -> None:
    names, first, second = ReceiverNames(), Watch(), Watch()
    assert [names.name(one) for one in (first, second, first, "text")] == ["Watch", "Watch#2", "Watch", "str"]
    names.clear()
    assert names.name(second) == "Watch"


def test_receivers_that_are_equal_are_told_apart_and_a_class_within_another_goes_by_its_own_name() -> None:
    class Inner:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    names = ReceiverNames()
    assert [names.name(Inner()), names.name(Inner())] == ["Inner", "Inner#2"]
