"""Callbacks from plain functions."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.callbacks.lambda_callback import LambdaCallback
from camshaft.hooks_core import CATALOGUE, HookSpec, Receiver, is_overridden, no_op, resolve

HOOKS = [spec for spec in CATALOGUE.received_by(Receiver.CALLBACK)]


@pytest.mark.parametrize("spec", HOOKS, ids=lambda spec: spec.name)
def test_every_hook_that_callbacks_receive_can_be_given_and_the_others_cost_nothing(spec: HookSpec) -> None:
    calls: list[tuple[Any, ...]] = []
    callback = LambdaCallback(**{spec.name: lambda *arguments: calls.append(arguments)})
    assert [one.name for one in HOOKS if is_overridden(callback, one.name)] == [spec.name]
    if spec.kind != "event":
        getattr(callback, spec.name)()
        assert calls == [()]
        return
    hooks = resolve(callbacks=[callback], trainer="trainer", module=None)
    getattr(hooks, spec.name)(*spec.parameters)
    assert calls == [("trainer", None, *spec.parameters)]
    others = [one.name for one in HOOKS if one.kind == "event" and one.name != spec.name]
    assert all(getattr(hooks, name) is no_op for name in others)


def test_a_function_may_take_fewer_arguments_and_by_name() -> None:
    seen: list[Any] = []
    callback = LambdaCallback(on_train_batch_end=lambda trainer, batch_idx: seen.append((trainer, batch_idx)))
    resolve(callbacks=[callback], trainer="trainer").on_train_batch_end("outputs", "batch", 7)
    assert seen == [("trainer", 7)]


def test_none_gives_no_hook() -> None:
    assert not is_overridden(LambdaCallback(on_fit_start=None), "on_fit_start")


@pytest.mark.parametrize(
    ("name", "closest"),
    [("on_train_batch_ends", "on_train_batch_end"), ("setups", "setup"), ("training_step", "on_train_start")],
)
def test_an_unknown_name_is_refused_with_the_closest(name: str, closest: str) -> None:
    message = f"`hooks` must be a hook of callbacks, but got '{name}' .* The closest one is `"
    with pytest.raises(TypeError, match=message) as caught:
        LambdaCallback(**{name: print})
    assert name == "training_step" or f"`{closest}`" in str(caught.value)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`on_fit_start` must be a function, but got 3 \(int\) in LambdaCallback"):
        LambdaCallback(on_fit_start=3)  # type: ignore[arg-type]


def test_functions_may_be_given_by_position() -> None:
    def set_up() -> None: ...

    def begin() -> None: ...

    callback = LambdaCallback(set_up, None, begin, on_train_end=begin)
    assert (callback.setup, callback.on_fit_start, callback.on_train_end) == (set_up, begin, begin)
    with pytest.raises(TypeError, match="`setup` must be given once"):
        LambdaCallback(set_up, setup=begin)
