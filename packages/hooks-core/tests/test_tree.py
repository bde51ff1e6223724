from __future__ import annotations

import re
from typing import Any

import pytest

from camshaft.hooks_core import CATALOGUE, ERAS
from camshaft.hooks_core.grammar import (
    Call,
    Condition,
    Either,
    If,
    Maybe,
    Repeat,
    Seq,
    Set,
    Within,
    life_cycle,
    tree,
    verbs_of,
)
from camshaft.hooks_core.grammar.nodes import hooks_in

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
    drawn = re.findall(r"── (\w+)\(", tree(verb, node, era=era))
    assert drawn == list(hooks_in(node))


@pytest.mark.parametrize(("verb", "era"), EVERY_LIFE_CYCLE)
def test_receivers_stand_in_one_column(verb: str, era: str | None) -> None:
    lines = tree(verb, life_cycle(verb, era), era=era).splitlines()[1:]
    columns = {match.end() for line in lines if (match := re.search(r"\)\s+(?=\[)", line))}
    assert len(columns) == 1
    assert all(line == line.rstrip() for line in lines)


def test_old_eras_show_their_own_hooks_and_the_module_alone() -> None:
    text = tree("fit", life_cycle("fit", "0.5"), era="0.5")
    assert "on_batch_start()" in text
    assert "[module]" in text
    assert "[callbacks]" not in text


def test_the_special_case_is_marked_in_trees_of_today_only() -> None:
    assert tree("fit", life_cycle("fit")).count("SPECIAL CASE") == 1
    assert "SPECIAL CASE" not in tree("fit", life_cycle("fit", "0.8"), era="0.8")


def test_a_hook_that_is_not_in_the_catalogue_is_an_error() -> None:
    with pytest.raises(KeyError, match="on_lunch"):
        tree("run", Call("on_lunch"))
    assert "on_lunch" not in CATALOGUE
