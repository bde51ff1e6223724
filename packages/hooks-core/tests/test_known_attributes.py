"""Attributes that are set although an object does not have them."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.hooks_core.support.known_attributes import check_attribute


class Settings:
    """As a class of this project."""

    __module__ = "camshaft.settings"
    declared: int

    def __init__(self) -> None:
        self.max_epochs = 1
        self._is_sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(self, name)
        object.__setattr__(self, name, value)

    @property
    def min_epochs(self) -> int:
        return 0

    @min_epochs.setter
    def min_epochs(self, value: int) -> None:
        self.max_epochs = value


def test_what_the_constructor_set_a_class_declares_or_a_property_takes_may_be_set() -> None:
    settings = Settings()
    settings.max_epochs, settings.declared = 2, 3
    settings.min_epochs = 4
    assert (settings.max_epochs, settings.declared) == (4, 3)


@pytest.mark.parametrize(("name", "closest"), [("max_epoch", "max_epochs"), ("min_epoch", "min_epochs")])
def test_a_misspelt_attribute_is_refused_with_the_closest_one(name: str, closest: str) -> None:
    with pytest.raises(AttributeError, match=rf"`{name}` must be an attribute of Settings.*Did you mean `{closest}`\?"):
        setattr(Settings(), name, 1)


def test_an_attribute_that_resembles_none_is_refused_with_where_to_keep_it() -> None:
    with pytest.raises(AttributeError, match=r"`qqq` must be .* Keep attributes of your own in the module"):
        Settings().qqq = 1  # type: ignore[attr-defined]


def test_a_subclass_of_ones_own_has_attributes_of_its_own() -> None:
    class Mine(Settings):
        pass

    mine: Any = Mine()
    mine.counter = 1
    assert mine.counter == 1


def test_an_owner_that_takes_attributes_of_the_users_own_refuses_misspelt_ones() -> None:
    class TakesOwn(Settings):
        __module__ = "camshaft.settings"

        def __setattr__(self, name: str, value: Any) -> None:
            check_attribute(self, name, takes_own=True)
            object.__setattr__(self, name, value)

    settings: Any = TakesOwn()
    settings.sweep_id = settings._max_epochs = 1
    with pytest.raises(AttributeError, match="Did you mean `max_epochs`"):
        settings.max_epoch = 1
