"""Hooks of the eras as data, laid over those of today: who had which, with which arguments, and in which moments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.spec import HookSpec, Receiver
from camshaft.hooks_core.support.messages import must_be

ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
"""The eras, oldest first: those that the specification documents describe, and 1.x as it was measured to be."""

EARLIER_ERAS = ERAS[:4]
"""Eras whose code does not run on today's protocol as it is."""

MODULE_ONLY_ERAS = ERAS[:3]
"""Eras whose documents know hooks of the module alone."""


@attrs.frozen
class EraSpec(HookSpec):
    """A hook, with what the eras have of it.

    Args:
        eras: The eras that know it, oldest first.
        is_current: Whether today's loops call it.
        signatures: The parameters in the eras where they differ from `parameters`.
        optionals: The optional arguments in the earlier eras that have any.
        fixed: Arguments that only signatures of earlier eras have, with what they are where the hook's caller does not
            pass them.
        aliases: Arguments of earlier eras that go by name alone, by their names of today, each with the names that
            signatures have for it. Underscores stand for the argument at their place.
        today: Current hooks it maps to, for a hook that no present era has: hooks of today, or what runners of eras
            call by a later name. Empty for hooks of today and for those without a counterpart.
        moments: The same as `today` in the eras, and in the releases of them ("1.1"), where they differ.
        precedes: Whether it comes before the hooks it maps to; else it follows them.
        condition: When a hook with `today` is called in that moment, as an expression of the arguments of today's hook;
            empty for always.
    """

    eras: tuple[str, ...] = ("1.x", "2.0", "2.x")
    is_current: bool = True
    signatures: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    optionals: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    fixed: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    aliases: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    today: tuple[str, ...] = ()
    moments: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    precedes: bool = False
    condition: str = ""

    def parameters_in(self, era: str | None) -> tuple[str, ...]:
        """Return the parameter names in an era; None stands for today."""
        return self.parameters if era is None else self.signatures.get(era, self.parameters)

    def optional_in(self, era: str | None) -> tuple[str, ...]:
        """Return the optional parameter names in an era; None stands for today."""
        return self.optional if era is None else self.optionals.get(era, ())

    def receivers_in(self, era: str | None) -> tuple[Receiver, ...]:
        """Return the receivers in an era; the documents of the eras before 1.x describe modules only."""
        return (Receiver.MODULE,) if era in MODULE_ONLY_ERAS else self.receivers

    def is_in(self, era: str | None) -> bool:
        """Return whether an era has it; None stands for today."""
        return self.is_current if era is None else era in self.eras

    def eras_of(self, kind: Receiver) -> tuple[str, ...]:
        """Return the eras that have the hook for a kind of receiver, oldest first."""
        return tuple(era for era in self.eras if kind in self.receivers_in(era))

    def moments_in(self, era: str, version: str | None = None) -> tuple[str, ...]:
        """Return the hooks in whose moments a hook of an earlier era is called.

        Args:
            era: The era.
            version: The release of it, if that is known ("1.1.8").
        """
        release = ".".join((version or "").split(".")[:2])
        return self.moments.get(release, self.moments.get(era, self.today))

    def as_in(self, era: str | None) -> HookSpec:
        """Return the hook as an era has it; None stands for today."""
        facts = {field.name: getattr(self, field.name) for field in attrs.fields(HookSpec)}
        facts |= {"parameters": self.parameters_in(era), "optional": self.optional_in(era)}
        return HookSpec(**facts | {"receivers": self.receivers_in(era)})


def check_era(era: str | None) -> None:
    """Raise `ValueError` unless `era` is None or one of `ERAS`."""
    if era is not None and era not in ERAS:
        raise ValueError(must_be("era", f"one of {', '.join(ERAS)}", era, "the hook catalogue", "Pass one of these."))


def hooks_of_eras(catalogue: Catalogue = CATALOGUE) -> dict[str, EraSpec]:
    """Return every hook of every era by name: those of a catalogue of today, then those of earlier eras alone."""
    return {name: in_eras(spec) for name, spec in catalogue.items()} | EARLIER_HOOKS


@lru_cache(maxsize=512)
def in_eras(spec: HookSpec) -> EraSpec:
    """Return a hook of today with what the eras have of it."""
    if isinstance(spec, EraSpec):
        return spec
    return EraSpec(**attrs.asdict(spec, recurse=False), **_OF_TODAY.get(spec.name, {}))


def catalogue_of(era: str | None, catalogue: Catalogue = CATALOGUE) -> Catalogue:
    """Return the hooks of an era as it has them; None stands for today.

    Raises:
        ValueError: If `era` is none of `ERAS`.
    """
    check_era(era)
    if era is None:
        return catalogue
    own = Catalogue((spec.as_in(era) for spec in hooks_of_eras(catalogue).values() if era in spec.eras), era)
    own.registered |= catalogue.registered & own.keys()
    own.places |= {name: one for name, one in catalogue.places.items() if name in own and one.hook in own}
    return own


def _read(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts of `EraSpec` from a row of the table, which has first and last era, and lists in place of tuples."""
    first, last = facts.pop("since", "1.x"), facts.pop("until", ERAS[-1])
    return {**_tuples(facts), "eras": ERAS[ERAS.index(first) : ERAS.index(last) + 1]}


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _earlier(name: str, facts: dict[str, Any]) -> EraSpec:
    receivers = tuple(map(Receiver, facts.pop("receivers")))
    return EraSpec(name=name, receivers=receivers, is_current=False, **_read(facts))


_TABLE = json.loads(Path(__file__).with_name("hooks.json").read_text(encoding="utf-8"))
"""Facts about hooks of today, where eras differ, and about hooks that earlier eras alone have."""

_OF_TODAY = {name: _read(facts) for name, facts in _TABLE["today"].items()}

EARLIER_HOOKS = {name: _earlier(name, facts) for name, facts in _TABLE["earlier"].items()}
"""The hooks that only earlier eras have, by name; those of one moment in the order in which they are called."""

EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})
"""Names of old hooks that a class of today may well use for a method of its own: no evidence by themselves."""
