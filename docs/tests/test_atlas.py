"""The hooks' pages and the interactive page, which is opened in Chromium from its file."""

from __future__ import annotations

import json
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import torch
from browser import CUT, SITE, SIZES, open_page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page
from sentences import Writer, participants

from camshaft.hooks_core import CATALOGUE, Callback
from camshaft.hooks_core.check import ConformanceError, check
from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of, hooks_of_eras
from camshaft.hooks_core.eras.orders import life_cycle, life_cycle_of_version, verbs_of
from camshaft.hooks_core.grammar import tree
from camshaft.hooks_core.grammar.conditions import Variation
from camshaft.hooks_core.grammar.nodes import without
from camshaft.hooks_core.spec import VERBS, ZERO_GRADS
from camshaft.hooks_core.trace import Trace
from camshaft.trainer import Trainer, TrainingModule

HOOKS = hooks_of_eras()
ATLAS = SITE / "hooks" / "atlas.html"
EVERY = [(verb, era) for era in (None, *ERAS) for verb in verbs_of(era)]
PLACES = ("", *ZERO_GRADS)


@pytest.fixture(scope="session")
def atlas(browser: Browser) -> Page:
    """The page for what needs no fresh one: its functions."""
    return opened(browser)


def opened(browser: Browser, fragment: str = "", size: str = "desktop", scheme: Any = "light") -> Page:
    return open_page(browser, f"{ATLAS.as_uri()}{fragment}", size, scheme)


# the pages of the hooks


def test_every_hook_has_a_page_that_names_its_arguments_and_is_linked_from_its_stage() -> None:
    for spec in HOOKS.values():
        text = (SITE / "hooks" / "_generated" / f"{spec.name}.html").read_text(encoding="utf-8")
        assert spec.name in text
        for name in {name for era in spec.eras for name in (*spec.parameters_in(era), *spec.optional_in(era))}:
            assert f">{name}<" in text, (spec.name, name)
        stage = (SITE / "hooks" / "_generated" / f"stage_{spec.stage}.html").read_text(encoding="utf-8")
        assert f'href="{spec.name}.html"' in stage


# the interactive page: what it shows


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fragment", ["", "#verb=fit&with=accumulation,rare&hook=optimizer_step", "#verb=test&era=0.5"])
def test_nothing_is_cut_and_the_console_is_empty(browser: Browser, fragment: str, size: str, scheme: str) -> None:
    page = opened(browser, fragment, size, scheme)
    page.wait_for_selector("#atlas .tree .hook")
    assert page.told == []  # type: ignore[attr-defined]
    for element in ("document.documentElement", "document.body"):
        assert page.evaluate(f"{element}.scrollWidth <= {element}.clientWidth")
    assert page.evaluate(CUT) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 300) == (scheme == "dark")
    page.close()


def test_the_search_finds_hooks_of_today_and_of_earlier_eras_and_shows_their_contracts(browser: Browser) -> None:
    page = opened(browser)
    for words, hook, fragment in (
        ("epoch end train", "on_train_epoch_end", "verb=fit"),
        ("predict_batch_start", "on_predict_batch_start", "verb=predict"),
        ("tbptt", "tbptt_split_batch", "splits"),
        ("pre_performance", "on_pre_performance_check", "era=0.8"),
    ):
        page.fill("#atlas input[type=search]", words)
        page.press("#atlas input[type=search]", "Enter")
        assert page.inner_text("#atlas .contract h2").startswith(hook)
        assert page.locator(f"#atlas .tree [aria-current][data-hook={hook}]").count()
        assert fragment in page.url and f"hook={hook}" in page.url
    page.close()


def test_an_address_leads_to_the_same_view(browser: Browser) -> None:
    page = opened(browser, "#verb=validate&era=1.x&receiver=strategy&hook=on_validation_end")
    assert page.input_value("select[name=verb]") == "validate"
    assert page.input_value("select[name=era]") == "1.x"
    shown = set(page.locator("#atlas .tree .hook").all_inner_texts())
    assert shown == {hook for hook in hooks_of("validate", "1.x") if "strategy" in HOOKS[hook].receivers}
    page.locator("select[name=receiver]").select_option("")
    assert "receiver" not in page.url
    page.close()


def hooks_of(verb: str, era: str | None) -> set[str]:
    lines = tree(verb, without(life_cycle(verb, era), frozenset(Variation)), catalogue=catalogue_of(era)).splitlines()
    return {line.split("()")[0].split()[-1] for line in lines if "()" in line}


def test_pointing_at_a_hook_shows_its_contract(browser: Browser) -> None:
    page = opened(browser)
    page.hover("#atlas .tree [data-hook=on_train_batch_start]")
    text = page.inner_text("#atlas .contract")
    assert "on_train_batch_start(self, trainer, module, batch, batch_idx)" in text
    assert CATALOGUE["on_train_batch_start"].returns in text
    page.close()


# the interactive page against the package

runs = st.tuples(
    st.sampled_from(EVERY),
    st.sampled_from(["automatic", "manual", "none"]),
    st.sampled_from(PLACES),
    st.sets(st.sampled_from([*(str(one) for one in Variation), "loaders"])),
)
quick = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))

LINES = """(rows) => {
    const lines = (rows, indent) => rows.flatMap((row, number) => {
        const isLast = number === rows.length - 1;
        const beside = [...row.receivers.map((one) => `[${one}]`), row.notes.join(", ")].join(" ");
        const below = lines(row.children, indent + (isLast ? "    " : "│   "));
        return [`${indent}${isLast ? "└── " : "├── "}${row.text} ${beside}`, ...below];
    });
    return lines(rows, "");
}"""


def chosen(run: Any) -> dict[str, Any] | None:
    """The page's state for a run; None if the package has no such life cycle."""
    (verb, era), optimization, zero, options = run
    try:
        life_cycle(verb, era, optimization=optimization, zero_grad=zero or None)
    except ValueError:
        return None
    return {"verb": verb, "era": era or "", "optimization": optimization, "zero": zero, "with": sorted(options)}


@quick
@given(run=runs)
def test_the_tree_is_that_of_the_command_line(atlas: Page, run: Any) -> None:
    state = chosen(run)
    if state is None:
        return
    (verb, era), optimization, zero, options = run
    state["with"] = [one for one in state["with"] if one != "loaders"]
    drawn = atlas.evaluate(
        f"(one) => {{ const state = {{...one, with: new Set(one.with)}};"
        f"return ({LINES})(lifeCycles.rows(hookAtlas.chosenCycle(state), state.era)); }}",
        state,
    )
    node = life_cycle(verb, era, optimization=optimization, zero_grad=zero or None)
    left_out = frozenset(Variation) - {Variation(one) for one in options if one != "loaders"}
    expected = tree(verb, without(node, left_out), catalogue=catalogue_of(era)).splitlines()[1:]
    assert [line.split() for line in drawn] == [line.split() for line in expected]


@quick
@given(run=runs)
def test_the_run_of_the_time_line_is_one_that_the_checker_accepts(
    atlas: Page, tmp_path_factory: pytest.TempPathFactory, run: Any
) -> None:
    state = chosen(run)
    if state is None:
        return
    text = atlas.evaluate(
        "(state) => exampleRun.asText(hookAtlas.exampleTrace({...state, with: new Set(state.with)}))", state
    )
    path = tmp_path_factory.getbasetemp() / "example.trace.jsonl"
    path.write_text(text, encoding="utf-8")
    trace = Trace.load(path)
    assert trace.events
    check(trace, state["verb"], optimization=state["optimization"], zero_grad=state["zero"] or None)


def test_what_the_time_line_leaves_out_is_worded_as_in_the_life_cycles(atlas: Page) -> None:
    words = set(atlas.evaluate("[...exampleRun.NOT_TAKEN, ...Object.keys(exampleRun.ROUNDS)]"))
    known = set(atlas.evaluate("lifeCycles.data.nodes.flatMap((node) => [node.when, node.each])"))
    assert words - known == {"validation loader", "test loader", "predict loader"}


@pytest.mark.parametrize(
    ("options", "hook", "calls"),
    [
        ([], "on_before_zero_grad", 2),
        (["accumulation"], "on_before_optimizer_step", 1),
        (["optimizers"], "on_before_optimizer_step", 4),
        (["splits"], "training_step", 4),
        (["skipped-losses"], "backward", 1),
        (["sanity-check"], "validation_step", 2),
        (["loaders"], "validation_step", 2),
    ],
)
def test_an_option_changes_the_run_of_the_time_line(atlas: Page, options: list[str], hook: str, calls: int) -> None:
    state = chosen((("fit", None), "automatic", "", options))
    events = atlas.evaluate("(state) => hookAtlas.exampleTrace({...state, with: new Set(state.with)}).events", state)
    of_module = [one for one in events if (one["kind"], one["hook"], one["receiver"]) == ("enter", hook, "Module")]
    assert len(of_module) == calls


def spoilt(trace: Trace, data: st.DataObject) -> Trace:
    """The trace after one to three changes that a faulty trainer might make."""
    events = list(trace.events)
    for _ in range(data.draw(st.integers(0, 3))):
        if not events:
            break
        at, other = (data.draw(st.integers(0, len(events) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["drop", "swap", "again", "cut", "result", "raise", "hook"])):
            case "drop":
                del events[at]
            case "swap":
                events[at], events[other] = events[other], events[at]
            case "again":
                events.insert(other, events[at])
            case "cut":
                del events[at:]
            case "result" if events[at].kind == "exit":
                events[at] = attrs.evolve(events[at], result=data.draw(st.sampled_from(["None", "-1", "2"])))
            case "raise" if events[at].kind == "exit":
                events[at] = attrs.evolve(events[at], result="", raised="ValueError")
            case "hook":
                name = data.draw(st.sampled_from(["on_exception", "teardown", "unknown", "on_test_start"]))
                events[at] = attrs.evolve(events[at], hook=name)
    changed = Trace(catalogue_of(trace.protocol))
    changed.participants, changed.events = list(trace.participants), events
    return changed


def sentence(verb: str, era: str | None, version: str | None, optimization: Any, random: Random) -> Trace:
    """A random trace of a run of an era, or of one in which a module of an earlier release runs today."""
    trace = Trace(catalogue_of(era))
    node = life_cycle(verb, era, optimization=optimization)
    trace.participants = [attrs.evolve(one, manual=optimization == "manual") for one in participants(era)]
    if version is not None:
        node = life_cycle_of_version(verb, version, optimization=optimization)
        trace.participants = [
            attrs.evolve(
                one,
                hooks={spec.name for spec in HOOKS.values() if one.kind in spec.receivers},
                version=version if one.kind == "module" else None,
            )
            for one in trace.participants
        ]
    trace.events = Writer(trace.participants, random).write(node)
    return trace


def departure(trace: Trace, verb: str) -> dict[str, Any] | None:
    try:
        check(trace, verb)
    except ConformanceError as error:
        return {"index": error.index, "expected": list(error.expected), "hook": error.hook}
    return None


CHECKED = """([text, verb]) => {
    const departure = traceCheck.check(traceCheck.read(text), verb);
    return departure ? {index: departure.index, expected: departure.expected, hook: departure.hook ?? null} : null;
}"""

whose = st.one_of(
    st.tuples(st.sampled_from(EVERY), st.none(), st.sampled_from(["automatic", "automatic", "manual"])),
    st.tuples(
        st.sampled_from([(verb, None) for verb in VERBS]),
        st.sampled_from(["0.4", "0.5.1", "0.7.6", "0.9", "1.0", "1.1.8", "1.2", "1.3", "1.5.10", "1.x", "1.9"]),
        st.just("automatic"),
    ),
)


@settings(quick, max_examples=200)
@given(whose=whose, random=st.randoms(use_true_random=False), data=st.data())
def test_the_first_departure_of_a_trace_is_that_of_the_checker(
    atlas: Page, tmp_path_factory: pytest.TempPathFactory, whose: Any, random: Random, data: st.DataObject
) -> None:
    (verb, era), version, optimization = whose
    trace = spoilt(sentence(verb, era, version, optimization, random), data)
    path = tmp_path_factory.getbasetemp() / "spoilt.trace.jsonl"
    trace.save(path)
    assert atlas.evaluate(CHECKED, [path.read_text(encoding="utf-8"), verb]) == departure(trace, verb)


CHECKED_WITHOUT = """([text, verb, ranges]) => {
    const trace = traceCheck.read(text);
    return ranges.map(([first, end]) => {
        const events = trace.events.filter((_, index) => index < first || index >= end);
        const departure = traceCheck.check({...trace, events}, verb);
        return departure ? [departure.index, departure.expected] : null;
    });
}"""


def emissions(trace: Trace) -> list[tuple[int, int]]:
    """Where each hook's calls on all of its receivers begin and end, with all that they enclose."""
    found: list[tuple[int, int]] = []
    opened: list[int] = []
    for index, event in enumerate(trace.events):
        if event.kind == "enter":
            opened.append(index)
            continue
        first = opened.pop()
        last = next((one for one in reversed(found) if one[1] == first), None)
        goes_on = last is not None and trace.events[last[0]].hook == event.hook
        if goes_on and last is not None:
            found.remove(last)
        found.append((last[0] if goes_on and last is not None else first, index + 1))
    return found


@settings(quick, max_examples=40)
@given(whose=whose, random=st.randoms(use_true_random=False))
def test_a_trace_that_lacks_a_hook_departs_where_it_does_for_the_checker(
    atlas: Page, tmp_path_factory: pytest.TempPathFactory, whose: Any, random: Random
) -> None:
    (verb, era), version, optimization = whose
    trace = sentence(verb, era, version, optimization, random)
    path = tmp_path_factory.getbasetemp() / "whole.trace.jsonl"
    trace.save(path)
    ranges = emissions(trace)
    ranges = random.sample(ranges, min(len(ranges), 60))
    expected = []
    for first, end in ranges:
        shorter = Trace(catalogue_of(trace.protocol))
        shorter.participants, shorter.events = trace.participants, trace.events[:first] + trace.events[end:]
        found = departure(shorter, verb)
        expected.append(found and [found["index"], found["expected"]])
    assert atlas.evaluate(CHECKED_WITHOUT, [path.read_text(encoding="utf-8"), verb, ranges]) == expected


def gives_loss_late(trace: Trace) -> bool:
    """Whether `training_step_end` returned a loss where `training_step` had none."""
    steps = [one for one in trace.events if one.kind == "exit" and one.hook in ("training_step", "training_step_end")]
    return any(
        (one.hook, one.result, other.hook) == ("training_step", "None", "training_step_end") and other.result != "None"
        for one, other in pairwise(steps)
    )


def test_a_loss_that_the_end_of_a_step_gives_is_followed_by_backward(atlas: Page, tmp_path: Path) -> None:
    traces = (sentence("fit", "1.x", None, "automatic", Random(number)) for number in count())
    next(trace for trace in traces if gives_loss_late(trace)).save(tmp_path / "late.trace.jsonl")
    text = (tmp_path / "late.trace.jsonl").read_text(encoding="utf-8")
    assert atlas.evaluate(CHECKED, [text, "fit"]) is None


# a trace that is dropped


class Line(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def recorded_fit(folder: Path) -> Trace:
    trace = Trace()
    callback = trace.record(Callback(), "callback")
    module = trace.record(Line(), "module")
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
    trainer = Trainer(max_epochs=2, callbacks=[callback], barebones=True, default_root_dir=folder)
    trainer.fit(module, loader, loader)
    return trace


DROP = """(text) => {
    const files = new DataTransfer();
    files.items.add(new File([text], "run.trace.jsonl"));
    document.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
}"""


def test_a_trace_of_a_run_follows_and_one_without_a_call_shows_where_it_departs(
    browser: Browser, tmp_path: Path
) -> None:
    trace, path = recorded_fit(tmp_path), tmp_path / "run.trace.jsonl"
    trace.save(path)
    page = opened(browser, "#verb=test", "phone")
    page.evaluate(DROP, path.read_text(encoding="utf-8"))
    assert "It follows the order of fit." in page.inner_text("#atlas .verdict.follows")

    first = next(index for index, event in enumerate(trace.events) if event.hook == "on_before_backward")
    del trace.events[first : first + 2]
    trace.save(path)
    page.set_input_files("#atlas-file", path)
    page.wait_for_selector("#atlas .verdict.departs")
    found = departure(trace, "fit")
    assert found is not None
    assert page.get_attribute("#atlas .verdict.departs", "data-index") == str(found["index"])
    text = page.inner_text("#atlas .verdict.departs")
    assert "; or ".join(found["expected"]) in text
    assert str(trace.events[first]).partition(" ")[2].split()[0] in text
    assert page.locator("#atlas svg .departs").count() == 1
    assert page.evaluate(CUT) == []
    assert page.told == []  # type: ignore[attr-defined]
    page.close()


def test_a_file_that_is_no_trace_is_an_error_that_says_so(browser: Browser) -> None:
    page = opened(browser)
    for text in ("", "nothing", json.dumps({"format": "camshaft-trace-1", "era": None, "participants": 3})):
        page.evaluate(DROP, text)
        assert "must hold a trace in the format camshaft-trace-1" in page.inner_text("#atlas .verdict.departs")
    page.close()
