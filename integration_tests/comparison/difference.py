"""What a difference between the frameworks is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import attrs

from comparison.configuration import Configuration
from comparison.recording import Recording

Topic = Literal["hooks", "optimization", "data", "logging", "checkpoints", "callbacks", "errors"]


def _align_nothing(theirs: Recording, own: Recording, configuration: Configuration) -> None:
    """Nothing recorded differs."""


@attrs.frozen(kw_only=True)
class Described:
    """A row of the page `docs/coming-from/lightning.md`: what camshaft does on purpose otherwise than Lightning.

    Args:
        name: In a few words.
        topic: The part of the page in which it stands.
        lightning: What Lightning does.
        camshaft: What camshaft does.
        reason: Why.
        write: What a user writes, or may leave as it is.
    """

    name: str
    topic: Topic
    lightning: str
    camshaft: str
    reason: str
    write: str


@attrs.frozen(kw_only=True)
class Difference(Described):
    """A difference that runs show, and how to compare all the rest.

    Args:
        witness: A configuration in which the difference shows.
        align: Changes the recordings (Lightning's, camshaft's) so that this difference is gone from them.
        prepare: Changes what Lightning runs.
        adapt: Changes the module's class that Lightning runs.
        excludes: Whether a run differs so much that nothing of it is compared.
        is_under_import_names: Whether the difference is there under Lightning's import names, too.
    """

    witness: Configuration
    align: Callable[[Recording, Recording, Configuration], None] = _align_nothing
    prepare: Callable[[Configuration], Configuration] = lambda configuration: configuration
    adapt: Callable[[Any, Configuration], Any] = lambda module_class, configuration: module_class
    excludes: Callable[[Configuration], bool] = lambda configuration: False
    is_under_import_names: bool = True
