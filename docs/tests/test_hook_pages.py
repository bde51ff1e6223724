"""What the pages of the hooks say: arguments, neighbours, and programs that run."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest
import sentences
from hook_arguments import CONTENTS, OF_HOOKS, contents_of
from hook_examples import BODIES, NOT_RUN, OTHER_METHODS, SETTINGS, example_of
from hook_neighbours import places_of

from camshaft.hooks_core import Receiver
from camshaft.hooks_core.dispatch.binding import CANONICAL_NAMES
from camshaft.hooks_core.eras.hooks import EraSpec, hooks_of_eras
from camshaft.hooks_core.eras.inspection import inspect_class
from camshaft.hooks_core.grammar import life_cycle
from camshaft.hooks_core.grammar.conditions import Variation
from camshaft.hooks_core.grammar.nodes import without
from camshaft.hooks_core.spec import VERBS
from camshaft.hooks_core.trace import Participant

HOOKS = hooks_of_eras()
SPECS = list(HOOKS.values())
TODAY = [spec for spec in SPECS if spec.is_current]


def test_every_argument_of_every_era_has_a_text_and_no_text_is_left_over() -> None:
    used: set[str] = set()
    for spec in SPECS:
        contents = contents_of(spec)
        assert all(contents.values())
        assert set(OF_HOOKS.get(spec.name, ())) <= contents.keys()
        used |= {CANONICAL_NAMES.get(name, name) for name in contents}
    assert set(CONTENTS) <= used
    assert {*OF_HOOKS, *BODIES, *NOT_RUN, *OTHER_METHODS, *SETTINGS} <= set(HOOKS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_example_of_a_hook_is_a_class_without_faults_and_its_run_calls_the_hook(spec: EraSpec) -> None:
    example = example_of(spec)
    first, last = example.lines
    lines = example.code.splitlines()
    assert lines[first - 1].lstrip().startswith(f"def {spec.name}(self")
    assert not lines[last].strip() or lines[last].startswith("trainer")

    namespace: dict[str, type] = {"__name__": "example"}  # type: ignore[dict-item]
    exec(example.code.partition("\ntrainer = ")[0], namespace)
    kind = Receiver.CALLBACK if "Example" in namespace else Receiver.MODULE
    era = None if spec.is_current else spec.eras_of(kind)[-1]
    found = inspect_class(namespace.get("Example") or namespace["Model"], kind, era)
    assert spec.name in {method.name for method in found.methods if method.call}
    assert [fault for fault in found.faults if not fault.is_warning and fault.method == spec.name] == []

    if spec.name in NOT_RUN:
        assert not re.search(rf"^{spec.name}\b(?!\()", example.output(), re.MULTILINE)
    else:
        assert re.search(rf"^{spec.name}\b", example.output(), re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_hooks_that_follow_each_other_in_a_usual_run_are_neighbours(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "_FREE", ())  # a run asks for loaders and optimizers, too
    everybody = [Participant("all", Receiver.MODULE, HOOKS)]
    node = without(life_cycle(verb), frozenset(Variation))
    places = {spec.name: place for spec in TODAY for place in places_of(spec) if place.verb == verb and not place.runs}
    seen: set[tuple[str, str]] = set()
    for seed in range(60):
        events = sentences.Writer(everybody, Random(seed)).write(node)
        marks = [f"the start of `{verb}`"]
        for number, event in enumerate(events):
            encloses = events[number + 1 if event.kind == "enter" else number - 1].hook != event.hook
            if event.kind == "enter" or encloses:
                how = {"enter": "the start of ", "exit": "the end of "}[event.kind] * encloses
                marks.append(f"{how}`{event.hook}`")
        marks.append(f"the end of `{verb}`")
        seen |= set(itertools.pairwise(marks))
    said = {(one, f"`{name}`") for name, place in places.items() for one in place.before if not is_enclosing(name)}
    said |= {(f"`{name}`", one) for name, place in places.items() for one in place.after if not is_enclosing(name)}
    assert said == {pair for pair in seen if not all("the " in mark for mark in pair)}
    if verb == "fit":
        step = places["optimizer_step"]
        assert {(one, "the start of `optimizer_step`") for one in step.before} <= seen
        assert {("the end of `optimizer_step`", one) for one in step.after} <= seen


def is_enclosing(hook: str) -> bool:
    return hook == "optimizer_step"
