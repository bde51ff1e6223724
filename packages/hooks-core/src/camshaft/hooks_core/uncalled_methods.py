"""Overrides of methods that other frameworks call, and whoever runs the receiver does not.

A class that takes the place of another framework's class declares the methods of that class which nobody calls here:

    _uncalled_methods: ClassVar[Mapping[str, str]] = {"_save_step": "Override `_save_checkpoint`."}

by their names, each with what to use instead. A subclass that overrides one would silently do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.hooks_core.implementation import class_of

DECLARATION = "_uncalled_methods"


def uncalled_overrides(receiver: object) -> Iterator[tuple[str, str]]:
    """Give the names of the overrides that nobody calls, each with what is wrong and what to do.

    An override that is marked with `@not_a_hook` is a method of the subclass's own, and left out.

    Args:
        receiver: A callback, or the class of one.
    """
    classes = class_of(receiver).__mro__
    for idx, declaring in enumerate(classes):
        for name, action in vars(declaring).get(DECLARATION, {}).items():
            override = next((vars(klass)[name] for klass in classes[:idx] if name in vars(klass)), None)
            if override is not None and not getattr(override, "__not_a_hook__", False):
                shown = declaring.__name__
                yield (
                    name,
                    f"this method of Lightning's {shown} is not called by that of camshaft, so an override does "
                    f"nothing. {action} If it is a method of your own, mark it with `@not_a_hook`.",
                )
