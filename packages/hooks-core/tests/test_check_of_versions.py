"""Traces of runs of earlier releases, checked by data alone; those of real receivers are in camshaft-compat."""

from __future__ import annotations

import random

import pytest
import recorded_runs
import sentences

from camshaft.hooks_core import Receiver
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.grammar import hooks_in, life_cycle_of_version
from camshaft.hooks_core.trace import Event, Participant, Trace


def test_a_trace_of_today_holds_nothing_of_eras() -> None:
    trace = recorded_runs.recorded()
    assert [one.version for one in trace.participants] == [None] * len(trace.participants)


VERSIONS = ("0.5", "0.7", "0.8", "0.9", "1.0", "1.2", "1.5", "1.9")


def of_version(version: str) -> list[Participant]:
    """Receivers that have every hook that a run of a version may call."""
    nodes = [life_cycle_of_version(verb, version) for verb in ("fit", "validate", "test", "predict")]
    placed = frozenset(name for node in nodes for name in hooks_in(node))
    found = []
    for one in sentences.participants():
        known = {name for name in placed if one.kind in sentences.CATALOGUE[name].receivers}
        is_old = one.kind is Receiver.MODULE
        found.append(
            Participant(one.name, one.kind, one.hooks | known, one.after_module, version=version if is_old else None)
        )
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_a_sentence_of_a_versions_life_cycle_passes_and_one_cut_short_does_not(verb: str, version: str) -> None:
    everybody = of_version(version)
    node = life_cycle_of_version(verb, version)
    for seed in range(8):
        trace = Trace()
        trace.participants = everybody
        trace.events = sentences.Writer(everybody, random.Random(seed)).write(node)
        trace.events += [  # what says that the loop optimizes
            Event("enter", "configure_optimizers", "module", Receiver.MODULE),
            Event("exit", "configure_optimizers", "module", Receiver.MODULE, result="Optimizer"),
        ]
        check(trace, verb)
        last = max(index for index, event in enumerate(trace.events) if event.hook == "teardown")
        del trace.events[last - 1 : last + 1]
        with pytest.raises(ConformanceError):
            check(trace, verb)
