"""The catalogue: every hook of every era, collected from the base classes that state those of today.

Dispatch, documentation and checks are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from camshaft.hooks_core.bases import Callback, CheckpointHooks, DataHooks, ModelHooks, ModuleSteps
from camshaft.hooks_core.earlier_hooks import EarlierHooks
from camshaft.hooks_core.messages import must_be
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
        raise ValueError(must_be("era", f"one of {', '.join(ERAS)}", era, "the hook catalogue", "Pass one of these."))


def _stated_by(*bases: type) -> list[HookSpec]:
    return [spec for base in bases for method in vars(base).values() if (spec := spec_of(method)) is not None]


_OF_TODAY = _stated_by(DataHooks, ModelHooks, ModuleSteps, CheckpointHooks, Callback)
_OF_TODAY.sort(key=lambda spec: STAGES.index(spec.stage))

CATALOGUE = Catalogue((*_OF_TODAY, *_stated_by(EarlierHooks)))
"""Every hook of the five specification documents, those of 1.x, and those that today's users rely on beside them."""

BUILT_IN = frozenset(CATALOGUE)
"""The names of these hooks, without those that third parties register."""
