"""The catalogue and the grammar as plain data, for the interactive page of the hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, get_args

from hook_arguments import contents_of

from camshaft.hooks_core.dispatch.binding import arguments_of
from camshaft.hooks_core.dispatch.calls import rank
from camshaft.hooks_core.eras.hooks import ERAS, MODULE_ONLY_ERAS, EraSpec, hooks_of_eras
from camshaft.hooks_core.eras.orders import life_cycle, life_cycle_of_version, verbs_of, with_old_hooks
from camshaft.hooks_core.grammar import after_an_exception
from camshaft.hooks_core.grammar.conditions import VARIATION_OF, Condition, Variation
from camshaft.hooks_core.grammar.drawing import receivers_in_words
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Set, Within
from camshaft.hooks_core.grammar.present import Optimization
from camshaft.hooks_core.spec import STAGES, VERBS, ZERO_GRADS, Receiver

VERSIONS = (
    *(f"0.{minor}" for minor in range(4, 11)),
    *(f"1.{minor}" for minor in range(10)),
    *("2.0", "2.1"),
    *("1.x", "2.x"),
)
"""Releases that differ in their order, as far as a trace can name one: its later digits make no difference."""
OPTIMIZATIONS: tuple[Optimization, ...] = get_args(Optimization)
_CONDITIONS = list(Condition)


def atlas_data() -> dict[str, Any]:
    """Return what the interactive page knows: hooks, life cycles and the words for them."""
    nodes = _Nodes()
    return {
        "eras": ERAS,
        "verbs": {era: verbs_of(era or None) for era in ("", *ERAS)},
        "stages": STAGES,
        "receivers": [str(kind) for kind in Receiver],
        "ranks": {str(kind): [rank(kind, late) for late in (False, True)] for kind in Receiver},
        "moduleOnlyEras": MODULE_ONLY_ERAS,
        "variations": [one for one in Variation if one != Variation.RARE],
        "conditions": [{"text": str(one), "variation": VARIATION_OF[one]} for one in Condition],
        "optimizations": OPTIMIZATIONS,
        "zeroGrads": ZERO_GRADS,
        "hooks": {spec.name: _hook(spec) for spec in hooks_of_eras().values()},
        "cycles": {key: nodes.number(node) for key, node in _cycles()},
        "cyclesOfVersions": {key: nodes.number(node) for key, node in _cycles_of_versions()},
        "afterAnException": nodes.number(with_old_hooks(after_an_exception(), "1.x")),
        "afterTearingDown": nodes.number(with_old_hooks(after_an_exception(while_tearing_down=True), "1.x")),
        "nodes": nodes.table,
    }


def _hook(spec: EraSpec) -> dict[str, Any]:
    eras = [None] * spec.is_current + [*spec.eras]
    return {
        "when": spec.when,
        "returns": spec.returns,
        "kind": spec.kind,
        "stage": spec.stage,
        "eras": spec.eras,
        "isCurrent": spec.is_current,
        "isolated": spec.isolated,
        "today": spec.today,
        "receivers": [str(kind) for kind in spec.receivers],
        "in": {era or "": _in_era(spec, era) for era in eras},
        "arguments": contents_of(spec),
    }


def _in_era(spec: EraSpec, era: str | None) -> dict[str, Any]:
    """Return what differs between eras: receivers with the arguments of each."""
    return {
        "receivers": [str(kind) for kind in spec.receivers_in(era)],
        "words": receivers_in_words(spec.as_in(era)),
        "arguments": {str(kind): arguments_of(spec.as_in(era), kind) for kind in spec.receivers_in(era)},
        "optional": spec.optional_in(era),
    }


def _cycles() -> Iterator[tuple[str, Node]]:
    """Yield the life cycles, each with its key: verb, era, optimization and place of zeroing."""
    for era in (None, *ERAS):
        for verb in verbs_of(era):
            for optimization, zero_grad in product(OPTIMIZATIONS, (None, *ZERO_GRADS)):
                try:
                    node = life_cycle(verb, era, optimization=optimization, zero_grad=zero_grad)
                except ValueError:  # the era or the kind of optimization has no such place
                    continue
                yield _key(verb, era, optimization, zero_grad), node


def _cycles_of_versions() -> Iterator[tuple[str, Node]]:
    """Yield the life cycles in which receivers of earlier releases run, by verb, version and version of moments."""
    pairs = {pair for version in VERSIONS for pair in ((version, version), (ERAS[-1], version))}
    for (version, moments), verb, optimization, zero_grad in product(
        sorted(pairs), VERBS, OPTIMIZATIONS, (None, *ZERO_GRADS)
    ):
        try:
            node = life_cycle_of_version(verb, version, moments=moments, optimization=optimization, zero_grad=zero_grad)
        except ValueError:
            continue
        yield _key(verb, version, moments, optimization, zero_grad), node


def _key(*parts: str | None) -> str:
    return "|".join(part or "" for part in parts)


class _Nodes:
    """Numbers nodes, equal ones alike, so that what life cycles share is written once."""

    def __init__(self) -> None:
        self.table: list[dict[str, Any]] = []
        self._numbers: dict[Node, int] = {}

    def number(self, node: Node) -> int:
        if node not in self._numbers:
            data = {
                key: value for key, value in self._data(node).items() if value not in (None, "") and value is not False
            }
            self._numbers[node] = len(self.table)
            self.table.append(data)
        return self._numbers[node]

    def _all(self, nodes: Iterable[Node]) -> list[int]:
        return [self.number(node) for node in nodes]

    def _data(self, node: Node) -> dict[str, Any]:
        match node:
            case Call(hook=hook, sets=sets, on=on, clears=clears):
                return {"is": "call", "hook": hook, "sets": _condition(sets), "on": on, "clears": _condition(clears)}
            case Seq(items=items, label=label, variation=variation):
                return {"is": "seq", "items": self._all(items), "label": label, "variation": variation}
            case Either(options=options):
                return {"is": "either", "items": self._all(options)}
            case Repeat(body=body, each=each, at_least=least, until=until, variation=variation):
                facts = {"each": each, "least": least, "until": _condition(until), "variation": variation}
                return {"is": "repeat", "body": self.number(body), **facts}
            case Maybe(body=body, when=when, left_out_if=condition, variation=variation, is_usual=is_usual):
                facts = {"when": when, "leftOutIf": _condition(condition), "variation": variation, "isUsual": is_usual}
                return {"is": "maybe", "body": self.number(body), **facts}
            case Within(hook=hook, body=body):
                return {"is": "within", "hook": hook, "body": self.number(body)}
            case If(condition=condition, body=body, holds=holds):
                return {"is": "if", "condition": _condition(condition), "body": self.number(body), "unless": not holds}
            case Set(condition=condition, value=value):
                return {"is": "set", "condition": _condition(condition), "clear": not value}


def _condition(condition: Condition | None) -> int | None:
    """Return a condition's position among all."""
    return None if condition is None else _CONDITIONS.index(condition)
