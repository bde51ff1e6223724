"""The catalogue: every hook, collected from the base classes that state it.

Dispatch, documentation and checks are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, ModuleSteps, RunHooks
from camshaft.hooks_core.spec import STAGES, HookSpec, Receiver, spec_of
from camshaft.hooks_core.support.messages import must_be


class Catalogue(Mapping[str, HookSpec]):
    """Ordered collection of hooks by name; third parties add theirs.

    Args:
        specs: The hooks to begin with.
        protocol: Name of the protocol that these are; None for camshaft's own.

    Attributes:
        registered: Names of the hooks that were added since.
    """

    def __init__(self, specs: Iterable[HookSpec] = (), protocol: str | None = None) -> None:
        self._specs: dict[str, HookSpec] = {}
        self.protocol = protocol
        self.registered: set[str] = set()
        for spec in specs:
            self.register(spec)
        self.registered.clear()

    def register(self, spec: HookSpec) -> HookSpec:
        """Add a hook, so that receivers may implement it and runs that are resolved afterwards can emit it.

        Returns:
            The record.

        Raises:
            ValueError: If the name is taken by another hook, or a name in the record is no identifier.
        """
        known = self._specs.get(spec.name)
        if known is not None and known != spec:
            rule, action = "new to the catalogue", "Choose another name."
            raise ValueError(must_be("spec.name", rule, spec.name, "Catalogue.register", action))
        for name in (spec.name, *spec.parameters, *spec.optional):
            if not name.isidentifier():
                rule = "a hook whose names are Python identifiers"
                raise ValueError(must_be("spec", rule, name, "Catalogue.register", "Rename it."))
        self._specs[spec.name] = spec
        if known is None:
            self.registered.add(spec.name)
        return spec

    def received_by(self, receiver: Receiver) -> list[HookSpec]:
        """Return the hooks that a kind of receiver may implement."""
        return [spec for spec in self._specs.values() if receiver in spec.receivers]

    def copy(self) -> Catalogue:
        """Return another catalogue with the same hooks, to extend without changing this one."""
        copied = Catalogue(self._specs.values(), self.protocol)
        copied.registered |= self.registered
        return copied

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
