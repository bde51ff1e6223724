from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.hooks_core import CATALOGUE, Receiver
from camshaft.hooks_core.dispatch.binding import (
    BindingError,
    arguments_of,
    bind,
    default_of,
    parameter_names,
    positional_names,
)
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS

PROVIDED = ("outputs", "batch", "batch_idx", "dataloader_idx")


def bound(function: Callable[..., Any], provided: tuple[str, ...] = PROVIDED) -> list[str]:
    return [str(argument) for argument in bind(function, provided)]


def call(function: Callable[..., Any], **values: Any) -> Any:
    """Call a function as dispatch would."""
    arguments = bind(function, tuple(values))
    positional = [values[argument.source] for argument in arguments if argument.keyword is None]
    by_keyword = {argument.keyword: values[argument.source] for argument in arguments if argument.keyword}
    return function(*positional, **by_keyword)


def test_the_hooks_own_signature_gets_everything_in_order() -> None:
    assert bound(lambda outputs, batch, batch_idx, dataloader_idx=0: None) == list(PROVIDED)


def test_fewer_arguments_are_taken_from_the_front() -> None:
    assert bound(lambda a, b: None) == ["outputs", "batch"]
    assert bound(lambda: None) == []


def test_known_names_win_over_positions() -> None:
    """Three arguments with two meanings: only the names tell which."""
    assert bound(lambda batch, batch_idx, dataloader_idx: None) == ["batch", "batch_idx", "dataloader_idx"]
    assert bound(lambda outputs, batch, batch_idx: None) == ["outputs", "batch", "batch_idx"]


def test_names_in_another_order_are_honoured() -> None:
    assert call(lambda batch_idx, batch: (batch_idx, batch), batch="b", batch_idx=1) == (1, "b")


def test_names_of_ones_own_go_by_position() -> None:
    assert call(lambda _, number: number, batch="b", batch_idx=7) == 7


def test_keyword_only_arguments_go_by_name() -> None:
    assert bound(lambda *, batch_idx: None) == ["batch_idx=batch_idx"]
    assert call(lambda batch, *, batch_idx: batch_idx, batch="b", batch_idx=7) == 7


def test_a_default_fills_what_the_hook_does_not_have() -> None:
    assert call(lambda batch, scale=2.0: scale, batch=1.0) == 2.0
    assert call(lambda scale=2.0, *, batch: (scale, batch), batch=1.0) == (2.0, 1.0)


def test_what_follows_a_default_that_stays_is_passed_by_keyword() -> None:
    def step(batch: Any, dataset: int = 3, batch_idx: int = 0) -> tuple[Any, int, int]:
        return batch, dataset, batch_idx

    assert call(step, batch="b", batch_idx=7) == ("b", 3, 7)


def test_star_arguments_get_everything() -> None:
    assert bound(lambda *arguments: None) == list(PROVIDED)
    assert bound(lambda **arguments: None) == []


def test_keywords_get_what_nothing_else_takes_if_they_are_to() -> None:
    def step(batch, **others): ...  # type: ignore[no-untyped-def]

    assert [str(one) for one in bind(step, PROVIDED[1:])] == ["batch"]
    assert [str(one) for one in bind(step, PROVIDED[1:], (), ("dataloader_idx",))] == [
        "batch",
        "dataloader_idx=dataloader_idx",
    ]


def test_a_parameter_with_a_default_that_is_no_index_does_not_get_the_index_of_the_loader() -> None:
    step = PROVIDED[1:]
    assert bound(lambda batch, number, stage="val": None, step) == ["batch", "batch_idx"]
    assert bound(lambda batch, number, log=True: None, step) == ["batch", "batch_idx"]
    assert bound(lambda batch, number, loader=0: None, step) == list(step)
    assert bound(lambda batch, number, loader=None: None, step) == list(step)


def test_a_wrapper_that_takes_less_than_what_it_wraps_gets_less() -> None:
    def inner(batch, batch_idx, dataloader_idx=0): ...  # type: ignore[no-untyped-def]

    assert bound(wraps(inner)(lambda batch, batch_idx: None), PROVIDED[1:]) == ["batch", "batch_idx"]
    assert bound(wraps(inner)(lambda *args: None), PROVIDED[1:]) == ["batch", "batch_idx", "dataloader_idx"]


def test_partials_and_builtins_can_be_bound() -> None:
    assert bound(partial(lambda scale, batch: None, 2.0), ("batch",)) == ["batch"]
    assert bound(print, ("batch",)) == ["batch"]


def test_an_argument_that_the_hook_does_not_have_is_an_error() -> None:
    with pytest.raises(
        BindingError,
        match=r"its signature \(batch, optimizer_idx\) requires `optimizer_idx`, but the hook has only \(batch\)",
    ):
        bind(lambda batch, optimizer_idx: None, ("batch",))


def test_an_iterator_of_batches_is_not_filled_by_a_batch() -> None:
    with pytest.raises(BindingError, match="requires `dataloader_iter`"):
        bind(lambda dataloader_iter: None, ("batch", "batch_idx"), ("dataloader_idx",))


def test_a_required_keyword_that_the_hook_does_not_have_is_an_error() -> None:
    with pytest.raises(BindingError, match="requires `on_tpu`"):
        bind(lambda batch, *, on_tpu: None, ("batch", "batch_idx"))


OLD_STEP = ("epoch", "batch_idx", "optimizer", "optimizer_idx", "second_order_closure")


def test_an_old_argument_is_not_filled_with_another_that_happens_to_stand_there() -> None:
    def optimizer_step(current_epoch, batch_nb, optimizer, optimizer_i, second_order_closure=None): ...  # type: ignore[no-untyped-def]

    assert bound(optimizer_step, OLD_STEP) == list(OLD_STEP)
    with pytest.raises(
        BindingError, match=r"requires `optimizer_i`, but the hook has only \(epoch, .*optimizer_closure\)"
    ):
        bind(optimizer_step, ("epoch", "batch_idx", "optimizer", "optimizer_closure"))


def test_an_old_argument_with_a_default_keeps_it() -> None:
    assert call(lambda batch, batch_idx, optimizer_idx=0: optimizer_idx, batch="b", batch_idx=1) == 0
    assert call(lambda batch, hiddens=None: hiddens, batch="b", batch_idx=1) is None


def test_a_position_that_a_name_took_is_an_error() -> None:
    """`batch` is at the second place by name, so nothing is left for the first."""
    with pytest.raises(BindingError, match="requires `number`"):
        bind(lambda number, batch: None, ("batch",))


STEP = ("batch", "batch_idx")
OPTIONAL = ("optimizer_idx", "hiddens")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda batch, batch_idx: None, ["batch", "batch_idx"]),
        (lambda batch, batch_idx, optimizer_idx: None, ["batch", "batch_idx", "optimizer_idx"]),
        (lambda batch, batch_idx, hiddens: None, ["batch", "batch_idx", "hiddens"]),
        (lambda batch, hiddens=None: None, ["batch", "hiddens"]),
        (lambda x, number, optimizer_idx, hiddens: None, ["batch", "batch_idx", "optimizer_idx", "hiddens"]),
        (lambda hiddens, batch_idx, batch: None, ["hiddens", "batch_idx", "batch"]),
        (lambda batch, *, hiddens: None, ["batch", "hiddens=hiddens"]),
        (lambda batch, batch_idx, scale=2.0, hiddens=None: None, ["batch", "batch_idx", "hiddens=hiddens"]),
        (lambda batch, batch_idx, optimizer_idx, /: None, ["batch", "batch_idx", "optimizer_idx"]),
        (lambda *arguments: None, ["batch", "batch_idx"]),
        (lambda *arguments, **others: None, ["batch", "batch_idx"]),
        (lambda *arguments, hiddens: None, ["batch", "batch_idx", "hiddens=hiddens"]),
        (
            lambda batch, batch_idx, optimizer_idx, *rest: None,
            ["batch", "batch_idx", "optimizer_idx=optimizer_idx"],
        ),
    ],
)
def test_optional_arguments_go_by_name_alone(function: Callable[..., Any], arguments: list[str]) -> None:
    assert [str(argument) for argument in bind(function, STEP, OPTIONAL)] == arguments


@pytest.mark.parametrize(
    ("function", "required"),
    [
        (lambda batch, batch_idx, state: None, "state"),
        (lambda batch, batch_idx, optimizer_i: None, "optimizer_i"),
        (lambda batch, batch_idx, *, on_tpu: None, "on_tpu"),
        (lambda batch, batch_idx, state, *rest: None, "state"),
        (lambda batch, optimizer_idx, *rest: None, "optimizer_idx"),
        (lambda batch, batch_idx, optimizer_idx, /, *rest: None, "optimizer_idx"),
        (lambda *arguments, on_tpu: None, "on_tpu"),
    ],
)
def test_what_neither_the_hook_nor_its_optional_arguments_fill_is_an_error(
    function: Callable[..., Any], required: str
) -> None:
    with pytest.raises(
        BindingError,
        match=rf"requires `{required}`, but the hook has only \(batch, batch_idx\) and, by these names alone, "
        r"\(optimizer_idx, hiddens\)",
    ):
        bind(function, STEP, OPTIONAL)


def test_a_keyword_only_argument_behind_star_arguments_is_passed_by_keyword() -> None:
    assert bound(lambda *arguments, batch_idx: None, STEP) == ["batch", "batch_idx=batch_idx"]
    assert call(lambda *arguments, batch_idx: (arguments, batch_idx), batch="b", batch_idx=1) == (("b",), 1)


@given(st.lists(st.sampled_from([*STEP, *OPTIONAL]), unique=True), st.integers(0, 4))
def test_any_choice_of_names_gets_those_values_optional_or_not(names: list[str], num_positional: int) -> None:
    namespace: dict[str, Any] = {}
    listed = [*names[:num_positional], *(["*"] if names[num_positional:] else []), *names[num_positional:]]
    exec(f"def function({', '.join(listed)}): return [{', '.join(names)}]", namespace)
    values = {name: number for number, name in enumerate([*STEP, *OPTIONAL])}
    arguments = bind(namespace["function"], STEP, OPTIONAL)
    positional = [values[argument.source] for argument in arguments if argument.keyword is None]
    by_keyword = {argument.keyword: values[argument.source] for argument in arguments if argument.keyword}
    assert namespace["function"](*positional, **by_keyword) == [values[name] for name in names]


@pytest.mark.parametrize(
    ("function", "names_it"),
    [
        (lambda batch, hiddens: None, True),
        (lambda batch, *, hiddens=None: None, True),
        (lambda hiddens, /: None, True),
        (partial(lambda scale, hiddens: None, 2.0), True),
        (lambda batch, batch_idx: None, False),
        (lambda *hiddens: None, False),
        (lambda **hiddens: None, False),
        (print, False),
        (dict, False),
    ],
)
def test_a_function_names_a_parameter_if_its_signature_does(function: Callable[..., Any], names_it: bool) -> None:
    assert ("hiddens" in parameter_names(function)) is names_it


def test_a_bound_method_and_a_wrapped_function_name_what_the_original_names() -> None:
    class Model:
        def training_step(self, batch: Any, optimizer_idx: int = 0) -> None: ...

    @wraps(Model.training_step)
    def wrapped(*arguments: Any, **others: Any) -> None: ...

    for function in (Model().training_step, wrapped):
        assert "optimizer_idx" in parameter_names(function)
        assert "hiddens" not in parameter_names(function)


def test_the_default_of_a_parameter_is_its_own_or_none() -> None:
    assert default_of(lambda optimizer_idx=0: None, "optimizer_idx") == 0
    assert default_of(lambda optimizer_idx: None, "optimizer_idx") is None


def test_positional_names_are_those_of_the_call_or_the_hooks_own() -> None:
    assert positional_names(lambda batch, hiddens, *, batch_idx: None, STEP, OPTIONAL) == ["batch", "hiddens"]
    assert positional_names(lambda one, two, three: None, STEP, OPTIONAL) == ["batch", "batch_idx"]


@given(st.lists(st.sampled_from(PROVIDED), unique=True))
def test_any_choice_of_names_gets_those_values(names: list[str]) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def function({', '.join(names)}): return [{', '.join(names)}]", namespace)
    values = {name: position for position, name in enumerate(PROVIDED)}
    assert call(namespace["function"], **values) == [values[name] for name in names]


@given(st.integers(min_value=0, max_value=len(PROVIDED)))
def test_any_number_of_unknown_names_gets_the_first_values(number: int) -> None:
    namespace: dict[str, Any] = {}
    names = [f"own_{position}" for position in range(number)]
    exec(f"def function({', '.join(names)}): return [{', '.join(names)}]", namespace)
    assert call(namespace["function"], **{name: name for name in PROVIDED}) == list(PROVIDED[:number])


def test_what_a_parameter_names_otherwise_is_not_taken_by_another_one_by_position() -> None:
    def optimizer_step(
        epoch: Any, batch_idx: Any, optimizer: Any, opt: Any, second_order_closure: Any = None
    ) -> None: ...

    with pytest.raises(BindingError, match="requires `opt`"):
        bind(optimizer_step, ("epoch", "batch_idx", "optimizer", "optimizer_closure"))
    old = ("epoch", "batch_idx", "optimizer", "optimizer_idx", "second_order_closure")
    assert [str(one) for one in bind(optimizer_step, old)] == list(old)


@pytest.mark.parametrize("name", ["optimizer_idx", "optimizer_i", "opt_idx", "opt_i"])
def test_the_index_of_an_optimizer_is_never_given_a_closure(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def optimizer_step(epoch, batch_idx, optimizer, {name}=0, closure=None): ...", namespace)
    taken = bind(namespace["optimizer_step"], ("epoch", "batch_idx", "optimizer", "optimizer_closure"))
    assert name not in [one.keyword or one.source for one in taken]
    assert [one.source for one in taken] == ["epoch", "batch_idx", "optimizer"]


def test_a_callback_gets_no_module_where_there_is_none_yet() -> None:
    assert arguments_of(EARLIER_HOOKS["on_init_end"], Receiver.CALLBACK) == ("trainer",)
    assert arguments_of(CATALOGUE["on_fit_start"], Receiver.CALLBACK) == ("trainer", "module")
    assert arguments_of(CATALOGUE["on_fit_start"], Receiver.MODULE) == ()
