from __future__ import annotations

import re
from typing import Any

import pytest

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of
from camshaft.hooks_core.eras.orders import life_cycle, verbs_of
from camshaft.hooks_core.grammar import mermaid, tree
from camshaft.hooks_core.grammar.conditions import Condition
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Repeat, Seq, Set, Within, hooks_in

EVERY_LIFE_CYCLE = [(verb, era) for era in (None, *ERAS) for verb in verbs_of(era)]
OTHER_PLACES = [("fit", None, "before_training_step"), ("fit", None, "after_optimizer_step")]


SMALL = Seq(
    "setup",
    Maybe(Call("prepare_data"), when="on one process only"),
    Set(Condition.HELD, False),
    Repeat(
        Seq("on_train_batch_start", If(Condition.SKIPPED, Seq("training_step", "backward"), holds=False)),
        each="batch",
        until=Condition.SKIPPED,
    ),
    Either(Within("optimizer_step", "on_before_backward"), Seq("on_fit_start", label="or so")),
    "on_train_epoch_end",
    "val_dataloader",
)
SPECIAL = "[callbacks that do not monitor] [module] [callbacks that monitor]  SPECIAL CASE"
ENCLOSING = "[module]  encloses what follows, where it is overridden"


def test_a_small_life_cycle_is_drawn_hook_by_hook_with_its_receivers() -> None:
    rows = [tuple(re.split(r"\s{2,}(?=\[)", line, maxsplit=1)) for line in tree("run", SMALL).splitlines()]
    assert rows == [
        ("run",),
        ("├── setup()", "[callbacks] [data] [module]"),
        ("├── prepare_data()", "[data] [module]  on one process only"),
        ("├── [for each batch, until the batch's start hook returned -1]",),
        ("│   ├── on_train_batch_start()", "[callbacks] [module] [strategy]"),
        ("│   └── [unless the batch's start hook returned -1]",),
        ("│       ├── training_step()", "[module]"),
        ("│       └── backward()", "[module]"),
        ("├── [one of]",),
        ("│   ├── optimizer_step()", ENCLOSING),
        ("│   │   └── on_before_backward()", "[callbacks] [module]"),
        ("│   └── [or so]",),
        ("│       └── on_fit_start()", "[callbacks] [module] [strategy]"),
        ("├── on_train_epoch_end()", SPECIAL),
        ("└── val_dataloader()", "[data or module]"),
    ]


@pytest.mark.parametrize(("verb", "era", "zero_grad"), [*((*one, None) for one in EVERY_LIFE_CYCLE), *OTHER_PLACES])
def test_every_hook_of_a_life_cycle_is_drawn_in_its_order(verb: str, era: str | None, zero_grad: Any) -> None:
    node = life_cycle(verb, era, zero_grad=zero_grad)
    drawn = re.findall(r"── (\w+)\(", tree(verb, node, catalogue=catalogue_of(era)))
    assert drawn == list(hooks_in(node))


@pytest.mark.parametrize(("verb", "era"), EVERY_LIFE_CYCLE)
def test_receivers_stand_in_one_column(verb: str, era: str | None) -> None:
    lines = tree(verb, life_cycle(verb, era), catalogue=catalogue_of(era)).splitlines()[1:]
    columns = {match.end() for line in lines if (match := re.search(r"\)\s+(?=\[)", line))}
    assert len(columns) == 1
    assert all(line == line.rstrip() for line in lines)


def test_old_eras_show_their_own_hooks_and_the_module_alone() -> None:
    text = tree("fit", life_cycle("fit", "0.5"), catalogue=catalogue_of("0.5"))
    assert "on_batch_start()" in text
    assert "[module]" in text
    assert "[callbacks]" not in text


def test_the_special_case_is_marked_in_trees_of_today_only() -> None:
    assert tree("fit", life_cycle("fit")).count("SPECIAL CASE") == 1
    assert "SPECIAL CASE" not in tree("fit", life_cycle("fit", "0.8"), catalogue=catalogue_of("0.8"))


def test_a_hook_that_is_not_in_the_catalogue_is_an_error() -> None:
    with pytest.raises(KeyError, match="on_lunch"):
        tree("run", Call("on_lunch"))
    assert "on_lunch" not in CATALOGUE


def arrows(chart: str) -> list[tuple[str, str]]:
    """The chart's arrows between what its boxes say, without receivers."""
    words = {name: text.partition("<br/>")[0] for name, text in re.findall(r'(n\d+)[(\[{]+"(.*?)"[)\]}]+', chart)}
    return [(words[source], words[target]) for source, target in re.findall(r"(n\d+) -->(?:\|[^|]*\|)? (n\d+)", chart)]


def test_a_sequence_is_a_chain_with_receivers() -> None:
    chart = mermaid("run", Seq("setup", "on_train_end"))
    assert arrows(chart) == [("run", "setup"), ("setup", "on_train_end"), ("on_train_end", "end of run")]
    assert "on_train_end<br/><small>callbacks, module, strategy</small>" in chart


def test_a_repetition_leads_back_to_its_head() -> None:
    chart = mermaid("run", Repeat(Call("setup"), each="batch", until=Condition.NO_LOSS))
    head = "for each batch, until training_step returned None"
    assert arrows(chart) == [("run", head), (head, "setup"), ("setup", head), (head, "end of run")]


def test_an_optional_part_can_be_passed_by() -> None:
    chart = mermaid("run", Maybe(Call("setup"), when="if so"))
    assert arrows(chart) == [("run", "if so"), ("if so", "setup"), ("setup", "end of run"), ("if so", "end of run")]
    conditional = mermaid("run", If(Condition.SKIPPED, Call("setup"), holds=False))
    assert '{"unless the batch\'s start hook returned -1"}' in conditional


def test_alternatives_part_and_join() -> None:
    chart = mermaid("run", Either("setup", Seq("teardown", label="or so")))
    assert arrows(chart) == [
        ("run", "one of"),
        ("one of", "setup"),
        ("one of", "teardown"),
        ("setup", "end of run"),
        ("teardown", "end of run"),
    ]
    assert "-->|or so|" in chart


def test_an_enclosing_hook_is_a_subgraph() -> None:
    chart = mermaid("run", Within("optimizer_step", "training_step"))
    assert re.search(r'subgraph n\d+\["optimizer_step"\]', chart)
    assert arrows(chart) == [
        ("enter optimizer_step", "training_step"),
        ("training_step", "leave optimizer_step"),
        ("run", "enter optimizer_step"),
        ("leave optimizer_step", "end of run"),
    ]


@pytest.mark.parametrize(("verb", "era", "zero_grad"), [*((*one, None) for one in EVERY_LIFE_CYCLE), *OTHER_PLACES])
def test_every_life_cycle_is_drawn_whole(verb: str, era: str | None, zero_grad: Any) -> None:
    node = life_cycle(verb, era, zero_grad=zero_grad)
    chart = mermaid(verb, node, catalogue=catalogue_of(era))
    assert chart.startswith("flowchart TD\n")
    assert chart.count("subgraph") == len(re.findall(r"^\s*end$", chart, re.MULTILINE))
    for name in hooks_in(node):
        assert f"{name}<br/>" in chart
    reached = {target for _, target in arrows(chart)}
    assert {source for source, _ in arrows(chart)} <= reached | {verb}
