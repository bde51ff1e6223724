from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import Writer, participants

from camshaft.hooks_core import ERAS
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.grammar import life_cycle, verbs_of
from camshaft.hooks_core.trace import Event, Participant, Trace

TODAY = [(verb, era) for era in (None, "2.0", "2.x") for verb in verbs_of(era)]
EVERY = [(verb, era) for era in (None, *ERAS) for verb in verbs_of(era)]
WITH_TEARDOWN = [(verb, era) for verb, era in EVERY if era not in ("0.5", "0.7")]
MAY_BE_LEFT_OUT = {"lr_scheduler_step", "on_validation_model_zero_grad"}
"""Hooks with one receiver that a life cycle allows any number of times, or leaves out."""


def trace_of(everybody: Sequence[Participant], events: Sequence[Event]) -> Trace:
    trace = Trace()
    trace.participants, trace.events = list(everybody), list(events)
    return trace


def sentence(verb: str, era: str | None, random: Random, optimization: Any = "automatic") -> Trace:
    everybody = participants(era)
    node = life_cycle(verb, era, optimization=optimization)
    return trace_of(everybody, Writer(everybody, random).write(node))


def single_calls(events: Sequence[Event]) -> list[int]:
    """Where calls begin that enclose nothing and that the life cycle does not leave to anybody's choice."""
    return [
        index
        for index, (event, following) in enumerate(pairwise(events))
        if (event.kind, following.kind) == ("enter", "exit")
        and event.hook not in MAY_BE_LEFT_OUT
        and not (event.hook == "training_step" and following.result == "None")
    ]


def departs_at(trace: Trace, events: Sequence[Event], verb: str, era: str | None) -> int | None:
    with pytest.raises(ConformanceError) as caught:
        check(trace_of(trace.participants, events), verb, era=era)
    error = caught.value
    assert f"`trace[{error.index}]`" in str(error)
    assert error.expected
    if error.event is None:
        assert error.index == len(events)
    else:
        assert events[error.index or 0] == error.event
        assert error.event.label in str(error)
    return error.index


randoms = st.randoms(use_true_random=False)


@pytest.mark.parametrize(("verb", "era"), EVERY)
@given(random=randoms)
def test_a_sentence_of_a_life_cycle_passes(verb: str, era: str | None, random: Random) -> None:
    check(sentence(verb, era, random), verb, era=era)


@pytest.mark.parametrize("optimization", ["manual", "none"])
@given(random=randoms)
def test_a_sentence_passes_under_its_kind_of_optimization(optimization: Any, random: Random) -> None:
    check(sentence("fit", None, random, optimization), "fit", optimization=optimization)


@pytest.mark.parametrize(("verb", "era"), WITH_TEARDOWN)
@given(random=randoms, data=st.data())
def test_a_sentence_cut_short_departs_at_its_end(
    verb: str, era: str | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random)
    length = data.draw(st.integers(0, len(trace) - 1))
    assert departs_at(trace, trace.events[:length], verb, era) == length


@pytest.mark.parametrize(("verb", "era"), TODAY)
@given(random=randoms, data=st.data())
def test_a_dropped_call_is_noticed_where_it_is_missing(
    verb: str, era: str | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random)
    index = data.draw(st.sampled_from(single_calls(trace.events)))
    events = trace.events[:index] + trace.events[index + 2 :]
    assert departs_at(trace, events, verb, era) == index


@pytest.mark.parametrize(("verb", "era"), TODAY)
@given(random=randoms, data=st.data())
def test_a_doubled_call_is_noticed_at_the_second(
    verb: str, era: str | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random)
    index = data.draw(st.sampled_from(single_calls(trace.events)))
    events = trace.events[: index + 2] + trace.events[index:]
    assert departs_at(trace, events, verb, era) == index + 2


@pytest.mark.parametrize(("verb", "era"), TODAY)
@given(random=randoms, data=st.data())
def test_two_calls_in_the_wrong_order_are_noticed_at_the_first(
    verb: str, era: str | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random)
    events = trace.events
    calls = single_calls(events)
    index = data.draw(st.sampled_from([one for one in calls if one + 2 in calls]))
    swapped = [*events[:index], *events[index + 2 : index + 4], *events[index : index + 2], *events[index + 4 :]]
    assert departs_at(trace, swapped, verb, era) == index


@given(random=randoms, data=st.data())
def test_a_foreign_call_is_noticed_where_it_stands(random: Random, data: st.DataObject) -> None:
    """Hooks of another verb have no place in a run."""
    trace = sentence("fit", None, random)
    index = data.draw(st.integers(0, len(trace)))
    foreign = [Event(kind, "on_test_start", "module", "module") for kind in ("enter", "exit")]  # type: ignore[arg-type]
    assert departs_at(trace, [*trace.events[:index], *foreign, *trace.events[index:]], "fit", None) == index


@given(random=randoms, data=st.data())
def test_an_exception_is_accepted_wherever_it_is_raised_if_everybody_is_told_and_torn_down(
    random: Random, data: st.DataObject
) -> None:
    trace = sentence("fit", None, random)
    body = [index for index, event in enumerate(trace.events) if event.kind == "enter" and event.hook != "teardown"]
    events = list(trace.events[: data.draw(st.sampled_from(body)) + 1])
    unclosed: list[Event] = []
    for event in events:
        unclosed.append(event) if event.kind == "enter" else unclosed.pop()
    events += [Event("exit", one.hook, one.receiver, one.receiver_kind, raised="KeyError") for one in unclosed[::-1]]
    tail = [
        Event(kind, hook, one.name, one.kind)  # type: ignore[arg-type]
        for hook in ("on_exception", "teardown")
        for one in trace.participants
        if hook in one.hooks
        for kind in ("enter", "exit")
    ]
    check(trace_of(trace.participants, [*events, *tail]), "fit")
    dropped = data.draw(st.integers(0, len(tail) // 2 - 1))
    del tail[2 * dropped : 2 * dropped + 2]
    assert departs_at(trace, [*events, *tail], "fit", None) == len(events) + 2 * dropped
