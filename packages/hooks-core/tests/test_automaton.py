from __future__ import annotations

import pytest

from camshaft.hooks_core.check import Automaton, Step
from camshaft.hooks_core.grammar import Call, Condition, Either, If, Maybe, Node, Repeat, Seq, Set, Within

RECEIVERS = {"both": ["x", "y"], "nobody": []}


def accepts(node: Node, sentence: str) -> bool:
    """Whether a life cycle accepts calls such as "a b>-1 (w c )w": a result behind ">", "(" enters and ")" leaves."""
    automaton = Automaton(node, lambda hook: RECEIVERS.get(hook, ["x"]))
    at: int | None = automaton.start
    for word in sentence.split():
        hook, _, result = word.strip("()").partition(">")
        hook, _, receiver = hook.partition(".")
        for kind in ("enter", "exit"):
            if (
                at is not None
                and not (word.startswith("(") and kind == "exit")
                and not (word.startswith(")") and kind == "enter")
            ):
                at = automaton.move(at, Step(kind, hook, receiver or "x"), result)  # type: ignore[arg-type]
    return at is not None and automaton.is_end(at)


@pytest.mark.parametrize(
    ("node", "right", "wrong"),
    [
        (Seq("a", "b"), ["a b"], ["", "a", "b a", "a b b"]),
        (Seq("both", "a"), ["both.x both.y a"], ["both.x a", "both.y both.x a", "both.x both.x both.y a"]),
        (Seq("a", "nobody", "b"), ["a b"], ["a nobody b"]),
        (Maybe(Call("a"), when="if so"), ["", "a"], ["a a"]),
        (Either("a", Seq("b", "c")), ["a", "b c"], ["", "b", "a b c"]),
        (Repeat(Seq("a", "b"), each="round"), ["", "a b", "a b a b"], ["a", "a b a"]),
        (Repeat(Call("a"), each="round", at_least=1), ["a", "a a a"], [""]),
        (Repeat(Maybe(Call("a"), when="if so"), each="round"), ["", "a", "a a"], ["b"]),
        (Within("w", "a"), ["(w a )w"], ["a", "w a", "(w a", "(w )w a"]),
        (Within("nobody", "a"), ["a"], ["(nobody a )nobody"]),
    ],
)
def test_accepts_what_follows_a_node_and_nothing_else(node: Node, right: list[str], wrong: list[str]) -> None:
    assert [sentence for sentence in right if not accepts(node, sentence)] == []
    assert [sentence for sentence in wrong if accepts(node, sentence)] == []


SKIP = Call("a", sets=Condition.SKIPPED, on="-1")


def test_a_condition_that_a_result_sets_decides_what_follows() -> None:
    node = Seq(SKIP, If(Condition.SKIPPED, Call("yes")), If(Condition.SKIPPED, Call("no"), holds=False))
    assert accepts(node, "a>-1 yes")
    assert accepts(node, "a no")
    assert not accepts(node, "a>-1 no")
    assert not accepts(node, "a yes")


def test_a_condition_ends_rounds_and_can_be_cleared() -> None:
    rounds = Repeat(SKIP, each="round", until=Condition.SKIPPED)
    assert accepts(rounds, "a a a>-1")
    assert not accepts(rounds, "a a>-1 a")
    assert accepts(Seq(rounds, Set(Condition.SKIPPED, False), rounds), "a a>-1 a")


def test_a_part_may_only_be_left_out_while_its_condition_holds() -> None:
    node = Seq(Maybe(SKIP, when=""), Maybe(Call("b"), when="", left_out_if=Condition.SKIPPED))
    assert accepts(node, "a b")
    assert accepts(node, "a>-1")
    assert not accepts(node, "a")
    assert not accepts(node, "")


def test_a_call_that_sets_a_condition_whatever_it_returns_sets_nothing_where_nobody_receives_it() -> None:
    node = Seq(Maybe(Call("a", sets=Condition.RESUMED), when=""), If(Condition.RESUMED, Call("b")))
    assert accepts(node, "a b")
    assert not accepts(node, "a")
    assert not accepts(Seq(Call("nobody", sets=Condition.RESUMED), If(Condition.RESUMED, Call("b"))), "b")


def test_expected_names_every_step_that_is_allowed() -> None:
    automaton = Automaton(Seq(Maybe(Call("a"), when=""), Within("w", "b")), lambda hook: ["x"])
    assert {str(step) for step in automaton.expected(automaton.start)} == {"a on x", "w on x"}
    inside = automaton.move(automaton.start, Step("enter", "a", "x"))
    assert inside is not None
    assert [str(step) for step in automaton.expected(inside)] == ["the end of a on x"]
