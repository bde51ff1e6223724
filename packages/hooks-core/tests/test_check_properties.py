from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import Writer, participants

from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of
from camshaft.hooks_core.eras.orders import life_cycle, verbs_of
from camshaft.hooks_core.spec import ZERO_GRADS, ZeroGrad
from camshaft.hooks_core.trace import Event, Participant, Trace

OTHER_PLACES: list[tuple[str, str | None, ZeroGrad | None]] = [
    ("fit", None, "before_training_step"),
    ("fit", None, "after_optimizer_step"),
]
TODAY = [(verb, era, None) for era in (None, "2.0", "2.x") for verb in verbs_of(era)] + OTHER_PLACES
EVERY = [(verb, era, None) for era in (None, *ERAS) for verb in verbs_of(era)] + OTHER_PLACES
WITH_TEARDOWN = [(verb, era, place) for verb, era, place in EVERY if era not in ("0.5", "0.7")]
MAY_BE_LEFT_OUT = {"lr_scheduler_step", "on_validation_model_zero_grad", "tbptt_split_batch"}
"""Hooks with one receiver that a life cycle allows any number of times, or leaves out."""


def trace_of(everybody: Sequence[Participant], events: Sequence[Event], era: str | None = None) -> Trace:
    trace = Trace(catalogue_of(era))
    trace.participants, trace.events = list(everybody), list(events)
    return trace


def sentence(
    verb: str,
    era: str | None,
    random: Random,
    optimization: Any = "automatic",
    zero_grad: ZeroGrad | None = None,
) -> Trace:
    everybody = participants(era)
    node = life_cycle(verb, era, optimization=optimization, zero_grad=zero_grad)
    return trace_of(everybody, Writer(everybody, random).write(node), era)


def single_calls(events: Sequence[Event]) -> list[int]:
    """Where calls begin that enclose nothing and that the life cycle does not leave to anybody's choice."""
    return [
        index
        for index, (event, following) in enumerate(pairwise(events))
        if (event.kind, following.kind) == ("enter", "exit")
        and event.hook not in MAY_BE_LEFT_OUT
        and not (event.hook == "training_step" and following.result == "None")
    ]


def departs_at(
    trace: Trace, events: Sequence[Event], verb: str, era: str | None, zero_grad: ZeroGrad | None = None
) -> int | None:
    with pytest.raises(ConformanceError) as caught:
        check(trace_of(trace.participants, events, era), verb, zero_grad=zero_grad)
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


@pytest.mark.parametrize(("verb", "era", "zero_grad"), EVERY)
@given(random=randoms)
def test_a_sentence_of_a_life_cycle_passes(
    verb: str, era: str | None, zero_grad: ZeroGrad | None, random: Random
) -> None:
    check(sentence(verb, era, random, zero_grad=zero_grad), verb, zero_grad=zero_grad)


@pytest.mark.parametrize("optimization", ["manual", "none"])
@given(random=randoms)
def test_a_sentence_passes_under_its_kind_of_optimization(optimization: Any, random: Random) -> None:
    check(sentence("fit", None, random, optimization), "fit", optimization=optimization)


@pytest.mark.parametrize(("verb", "era", "zero_grad"), WITH_TEARDOWN)
@given(random=randoms, data=st.data())
def test_a_sentence_cut_short_departs_at_its_end(
    verb: str, era: str | None, zero_grad: ZeroGrad | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random, zero_grad=zero_grad)
    length = data.draw(st.integers(0, len(trace) - 1))
    assert departs_at(trace, trace.events[:length], verb, era, zero_grad) == length


@pytest.mark.parametrize(("verb", "era", "zero_grad"), TODAY)
@given(random=randoms, data=st.data())
def test_a_dropped_call_is_noticed_where_it_is_missing(
    verb: str, era: str | None, zero_grad: ZeroGrad | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random, zero_grad=zero_grad)
    index = data.draw(st.sampled_from(single_calls(trace.events)))
    events = trace.events[:index] + trace.events[index + 2 :]
    assert departs_at(trace, events, verb, era, zero_grad) == index


@pytest.mark.parametrize(("verb", "era", "zero_grad"), TODAY)
@given(random=randoms, data=st.data())
def test_a_doubled_call_is_noticed_at_the_second(
    verb: str, era: str | None, zero_grad: ZeroGrad | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random, zero_grad=zero_grad)
    index = data.draw(st.sampled_from(single_calls(trace.events)))
    events = trace.events[: index + 2] + trace.events[index:]
    assert departs_at(trace, events, verb, era, zero_grad) == index + 2


@pytest.mark.parametrize(("verb", "era", "zero_grad"), TODAY)
@given(random=randoms, data=st.data())
def test_two_calls_in_the_wrong_order_are_noticed_at_the_first(
    verb: str, era: str | None, zero_grad: ZeroGrad | None, random: Random, data: st.DataObject
) -> None:
    trace = sentence(verb, era, random, zero_grad=zero_grad)
    events = trace.events
    calls = single_calls(events)
    index = data.draw(st.sampled_from([one for one in calls if one + 2 in calls]))
    swapped = [*events[:index], *events[index + 2 : index + 4], *events[index : index + 2], *events[index + 4 :]]
    assert departs_at(trace, swapped, verb, era, zero_grad) == index


@pytest.mark.parametrize("checked", ZERO_GRADS)
@pytest.mark.parametrize("written", ZERO_GRADS)
@given(seed=st.integers(0, 1_000_000))
def test_a_sentence_passes_for_its_own_place_of_zeroing_alone(written: ZeroGrad, checked: ZeroGrad, seed: int) -> None:
    drawn = (sentence("fit", None, Random(number), zero_grad=written) for number in count(seed))
    # What a resumed run holds is unknown, so that its first update may need no zeroing before it.
    hooks = ((one, {event.hook for event in one}) for one in drawn)
    trace = next(one for one, called in hooks if "on_before_zero_grad" in called and "on_load_checkpoint" not in called)
    if written == checked:
        check(trace, "fit", zero_grad=checked)
    else:
        departs_at(trace, trace.events, "fit", None, checked)


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
