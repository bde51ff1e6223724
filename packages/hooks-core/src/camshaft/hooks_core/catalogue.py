"""The catalogue: every hook, collected from the base classes that state it.

Dispatch, documentation and checks are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, ModuleSteps, RunHooks
from camshaft.hooks_core.spec import STAGES, UNORDERED_KINDS, HookPlace, HookSpec, Receiver, spec_of
from camshaft.hooks_core.support.messages import must_be


class Catalogue(Mapping[str, HookSpec]):
    """Ordered collection of hooks by name; third parties add theirs.

    Args:
        specs: The hooks to begin with.
        protocol: Name of the protocol that these are; None for camshaft's own.

    Attributes:
        registered: Names of the hooks that were added since.
        places: Places of those that have one, by name. The others may be called at any time.
    """

    def __init__(self, specs: Iterable[HookSpec] = (), protocol: str | None = None) -> None:
        self._specs: dict[str, HookSpec] = {}
        self.protocol = protocol
        self.registered: set[str] = set()
        self.places: dict[str, HookPlace] = {}
        for spec in specs:
            self.register(spec)
        self.registered.clear()

    def register(self, spec: HookSpec, place: HookPlace | None = None) -> HookSpec:
        """Add a hook, so that receivers may implement it and runs that are resolved afterwards can emit it.

        Args:
            spec: The hook.
            place: Its place in the life cycles, which `check` and `conform` hold its calls to. None lets it be called
                at any time.

        Returns:
            The record.

        Raises:
            ValueError: If the name is taken by another hook, or by the same in another place; a name in the record is
                no identifier; or one of the hooks in `place` is unknown, or of a kind that has no order.
        """
        known = self._specs.get(spec.name)
        if known is not None and (known != spec or self.places.get(spec.name) != place):
            rule, action = "new to the catalogue", "Choose another name."
            raise ValueError(must_be("spec.name", rule, spec.name, "Catalogue.register", action))
        for name in (spec.name, *spec.parameters, *spec.optional):
            if not name.isidentifier():
                rule = "a hook whose names are Python identifiers"
                raise ValueError(must_be("spec", rule, name, "Catalogue.register", "Rename it."))
        if place is not None:
            self._check_place(spec, place)
            self.places[spec.name] = place
        self._specs[spec.name] = spec
        if known is None:
            self.registered.add(spec.name)
        return spec

    def _check_place(self, spec: HookSpec, place: HookPlace) -> None:
        beside = self._specs.get(place.hook)
        if beside is None:
            rule, action = "a hook of the catalogue", "Register that one first."
            raise ValueError(must_be("place.hook", rule, place.hook, "Catalogue.register", action))
        for one in (beside, spec):
            if one.kind in UNORDERED_KINDS:
                rule = f"left out for hooks of the kinds {' and '.join(UNORDERED_KINDS)}, such as {one.name!r}"
                action = "Leave it out, or name another hook."
                raise ValueError(must_be("place", rule, place, "Catalogue.register", action))

    def received_by(self, receiver: Receiver) -> list[HookSpec]:
        """Return the hooks that a kind of receiver may implement."""
        return [spec for spec in self._specs.values() if receiver in spec.receivers]

    def copy(self) -> Catalogue:
        """Return another catalogue with the same hooks, to extend without changing this one."""
        copied = Catalogue(self._specs.values(), self.protocol)
        copied.registered |= self.registered
        copied.places |= self.places
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the state, or for the catalogue of the process its name: it has no copies by accident."""
        return "CATALOGUE" if self is CATALOGUE else super().__reduce_ex__(protocol)

    def __getitem__(self, name: str) -> HookSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


_STATED = [
    spec
    for base in (DataHooks, RunHooks, ModelHooks, ModuleSteps, CheckpointHooks, Callback)
    for method in vars(base).values()
    if (spec := spec_of(method)) is not None
]

CATALOGUE = Catalogue(sorted(_STATED, key=lambda spec: STAGES.index(spec.stage)))
"""Every hook of camshaft, and those that third parties registered."""
