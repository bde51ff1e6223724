"""The catalogue: every hook of every era, collected from the base classes that state those of today.

Dispatch, documentation and checks are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, ModuleSteps
from camshaft.hooks_core.earlier_hooks import EARLIER_HOOKS
from camshaft.hooks_core.spec import ERAS, STAGES, HookSpec, Receiver, spec_of


class Catalogue(Mapping[str, HookSpec]):
    """Ordered collection of hooks by name; third parties add theirs.

    Args:
        specs: The hooks to begin with.
    """

    def __init__(self, specs: Iterable[HookSpec] = ()) -> None:
        self._specs: dict[str, HookSpec] = {}
        for spec in specs:
            self.register(spec)

    def register(self, spec: HookSpec) -> HookSpec:
        """Add a hook, so that receivers may implement it and runs that are resolved afterwards can emit it.

        Raises:
            ValueError: If the name is taken by another hook, or a name in the record is no identifier.
        """
        known = self._specs.get(spec.name)
        if known is not None and known != spec:
            raise ValueError(
                f"`spec.name` must be new to the catalogue, but got {spec.name!r} (str) in Catalogue.register. "
                "Choose another name."
            )
        for name in (spec.name, *spec.parameters, *spec.optional):
            if not name.isidentifier():
                raise ValueError(
                    f"`spec` must use Python identifiers as names, but got {name!r} ({type(name).__name__}) in "
                    f"Catalogue.register. Rename it."
                )
        self._specs[spec.name] = spec
        return spec

    def in_era(self, era: str | None) -> list[HookSpec]:
        """Return the hooks that an era knows; None gives all.

        Raises:
            ValueError: If `era` is none of `ERAS`.
        """
        check_era(era)
        return [spec for spec in self._specs.values() if era is None or era in spec.eras]

    def received_by(self, receiver: Receiver) -> list[HookSpec]:
        """Return the hooks that a kind of receiver may implement."""
        return [spec for spec in self._specs.values() if receiver in spec.receivers]

    def copy(self) -> Catalogue:
        """Return another catalogue with the same hooks, to extend without changing this one."""
        return Catalogue(self._specs.values())

    def __getitem__(self, name: str) -> HookSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def check_era(era: str | None) -> None:
    """Raise `ValueError` unless `era` is None or one of `ERAS`."""
    if era is not None and era not in ERAS:
        raise ValueError(
            f"`era` must be one of {', '.join(ERAS)}, but got {era!r} ({type(era).__name__}) in the hook catalogue. "
            "Pass one of these."
        )


def stated_hooks(*bases: type) -> list[HookSpec]:
    """Return the hooks that the methods of base classes state, in the order of their stages."""
    stated = [spec for base in bases for method in vars(base).values() if (spec := spec_of(method)) is not None]
    return sorted(stated, key=lambda spec: STAGES.index(spec.stage))


CATALOGUE = Catalogue((*stated_hooks(DataHooks, ModelHooks, ModuleSteps, CheckpointHooks, Callback), *EARLIER_HOOKS))
"""Every hook of the five specification documents, those of 1.x, and those that today's users rely on beside them."""
