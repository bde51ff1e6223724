from __future__ import annotations

import functools
import traceback
from typing import Any

import pytest

from camshaft.hooks_core import (
    CATALOGUE,
    Callback,
    HookFaultError,
    HookSpec,
    ModelHooks,
    Receiver,
    StrategyHooks,
    resolve,
)
from camshaft.hooks_core.dispatch.calls import runs_after_module
from camshaft.hooks_core.spec import SKIP_EPOCH

EVENTS = [spec for spec in CATALOGUE.values() if spec.kind == "event"]


class Recorder:
    """A receiver of every event that writes down who was called with what."""

    def __init__(self, name: str, calls: list[Any], kind: Receiver) -> None:
        for spec in EVENTS:
            if kind in spec.receivers:
                setattr(self, spec.name, self._recording(name, spec.name, calls))

    def _recording(self, name: str, hook: str, calls: list[Any]) -> Any:
        return lambda *arguments: calls.append((name, hook, arguments))


def callback(name: str, calls: list[Any], **attributes: Any) -> Any:
    klass = type(name, (Recorder,), attributes)
    return klass(name, calls, Receiver.CALLBACK)


def everyone(calls: list[Any]) -> dict[str, Any]:
    return {
        "callbacks": [callback("first", calls), callback("second", calls)],
        "data": Recorder("data", calls, Receiver.DATA),
        "module": Recorder("module", calls, Receiver.MODULE),
        "strategy": Recorder("strategy", calls, Receiver.STRATEGY),
    }


@pytest.mark.parametrize("spec", EVENTS, ids=lambda spec: spec.name)
def test_event_reaches_its_receivers_in_order_with_its_arguments(spec: HookSpec) -> None:
    calls: list[Any] = []
    receivers = everyone(calls)
    hooks = resolve(**receivers, trainer="the trainer")
    getattr(hooks, spec.name)(*spec.parameters)
    names = {
        Receiver.CALLBACK: ["first", "second"],
        Receiver.DATA: ["data"],
        Receiver.MODULE: ["module"],
        Receiver.STRATEGY: ["strategy"],
    }
    expected = []
    for kind in spec.receivers:
        prefix = ("the trainer", receivers["module"]) if kind is Receiver.CALLBACK else ()
        expected += [(name, spec.name, (*prefix, *spec.parameters)) for name in names[kind]]
    assert calls == expected


def test_callbacks_that_monitor_come_after_the_module_when_an_epoch_ends_and_nowhere_else() -> None:
    calls: list[Any] = []
    callbacks = [callback("monitor", calls, monitors=True), callback("plain", calls)]
    hooks = resolve(callbacks=callbacks, module=Recorder("module", calls, Receiver.MODULE))
    hooks.on_train_epoch_end()
    hooks.on_train_epoch_start()
    assert [name for name, *_ in calls] == ["plain", "module", "monitor", "monitor", "plain", "module"]


def test_a_callback_may_declare_to_run_after_the_module_but_stays_before_the_strategy() -> None:
    calls: list[Any] = []
    late = callback("late", calls, after_module=frozenset({"on_fit_start"}))
    hooks = resolve(
        callbacks=[late, callback("plain", calls)],
        module=Recorder("module", calls, Receiver.MODULE),
        strategy=Recorder("strategy", calls, Receiver.STRATEGY),
    )
    hooks.on_fit_start()
    assert [name for name, *_ in calls] == ["plain", "module", "late", "strategy"]


def test_runs_after_module_reads_the_declarations() -> None:
    monitoring = type("Monitoring", (Callback,), {"monitors": True})()
    assert runs_after_module(monitoring, "on_train_epoch_end")
    assert not runs_after_module(monitoring, "on_fit_start")
    assert not runs_after_module(object(), "on_train_epoch_end")


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ((None, None, None), None),
        ((-1, None, None), -1),
        ((None, -1, None), -1),
        ((None, None, -1), -1),
        ((0, 1, 2), None),
    ],
)
def test_minus_one_from_any_receiver_skips_and_all_are_called_all_the_same(
    returned: tuple[Any, ...], expected: int | None
) -> None:
    calls: list[str] = []

    def receiver(name: str, base: type, value: Any) -> Any:
        def on_train_batch_start(self: object, *arguments: Any) -> Any:
            calls.append(name)
            return value

        return type(name, (base,), {"on_train_batch_start": on_train_batch_start})()

    hooks = resolve(
        callbacks=[receiver("callback", Callback, returned[0])],
        module=receiver("module", ModelHooks, returned[1]),
        strategy=receiver("strategy", StrategyHooks, returned[2]),
    )
    assert hooks.on_train_batch_start("batch", 0) == expected
    assert SKIP_EPOCH == -1
    assert calls == ["callback", "module", "strategy"]


def test_arguments_are_fitted_to_each_receivers_signature() -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer, pl_module is module, outputs, batch, batch_idx))

    class Model(ModelHooks):
        def on_train_batch_end(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            seen.append((batch, batch_idx))

    module = Model()
    hooks = resolve(callbacks=[Watch()], module=module, trainer="trainer")
    hooks.on_train_batch_end("outputs", "batch", 3)
    assert seen == [("trainer", True, "outputs", "batch", 3), ("batch", 3)]


def test_a_step_returns_what_the_module_returns_and_goes_through_the_strategys_wrapper() -> None:
    class Model(ModelHooks):
        def training_step(self, batch: int) -> int:
            return batch + 1

    class Doubling(StrategyHooks):
        def wrap_step(self, step: Any) -> Any:
            return lambda *arguments: 2 * step(*arguments)

    assert resolve(module=Model()).training_step(3, 0) == 4  # type: ignore[misc]
    assert resolve(module=Model(), strategy=Doubling()).training_step(3, 0) == 8  # type: ignore[misc]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_gets_the_optional_arguments_that_it_names(wrapped: bool) -> None:
    class Step(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int, *, hiddens: Any) -> Any:
            return batch, batch_idx, optimizer_idx, hiddens

    class Few(ModelHooks):
        def training_step(self, batch: Any, hiddens: Any) -> Any:
            return batch, hiddens

    class Plain(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return batch, batch_idx

    class Wrapping(StrategyHooks):
        def wrap_step(self, step: Any) -> Any:
            return lambda *arguments, **others: step(*arguments, **others)

    def step(module: Any) -> Any:
        return resolve(module=module, strategy=Wrapping() if wrapped else None).training_step

    assert step(Step())("b", 0, 1, "h") == ("b", 0, 1, "h")
    assert step(Step())("b", 0, hiddens="h", optimizer_idx=1) == ("b", 0, 1, "h")
    assert step(Step())("b", 0) == ("b", 0, None, None)
    assert step(Few())("b", 0, 1, "h") == ("b", "h")
    assert step(Plain())("b", 0, 1, "h") == ("b", 0)
    assert step(Plain())("b", 0) == ("b", 0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_optional_argument_that_is_not_passed_keeps_the_steps_own_default(wrapped: bool) -> None:
    class First(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int = 0, hiddens: Any = "zeros") -> Any:
            return optimizer_idx, hiddens

    class Second(First):
        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int = 7, hiddens: Any = "ones") -> Any:
            return optimizer_idx, hiddens

    class Wrapping(StrategyHooks):
        def wrap_step(self, step: Any) -> Any:
            return lambda *arguments: step(*arguments)

    steps: list[Any] = [
        resolve(module=module, strategy=Wrapping() if wrapped else None).training_step for module in (First(), Second())
    ]
    assert [step("b", 0) for step in steps] == [(0, "zeros"), (7, "ones")]
    assert [step("b", 0, 3) for step in steps] == [(3, "zeros"), (3, "ones")]
    assert steps[0]("b", 0, hiddens=None) == (0, None)


def test_optional_arguments_of_an_event_reach_the_receivers_that_name_them() -> None:
    catalogue = CATALOGUE.copy()
    everybody = (Receiver.CALLBACK, Receiver.MODULE)
    catalogue.register(HookSpec("on_lunch", "At noon.", everybody, ("menu",), optional=("guest",)))
    seen: list[Any] = []
    watch = type("Watch", (Callback,), {"on_lunch": lambda self, trainer, module, menu, guest: seen.append(guest)})
    model = type("Model", (ModelHooks,), {"on_lunch": lambda self, menu: seen.append(menu)})
    hooks: Any = resolve(callbacks=[watch()], module=model(), catalogue=catalogue)
    hooks.on_lunch("soup", "Ada")
    hooks.on_lunch("bread")
    assert seen == ["Ada", "soup", None, "bread"]


def test_splitting_along_time_belongs_to_a_module_that_overrides_it() -> None:
    model = type("Model", (ModelHooks,), {"tbptt_split_batch": lambda self, batch, split_size: [batch[:split_size]]})
    split: Any = resolve(module=model()).tbptt_split_batch
    assert split("abc", 2) == ["ab"]
    assert resolve(module=ModelHooks()).tbptt_split_batch is None


def test_a_transform_goes_to_the_data_module_first() -> None:
    data = type("Data", (), {"on_after_batch_transfer": lambda self, batch, dataloader_idx: ("data", batch)})()
    module = type("Model", (), {"on_after_batch_transfer": lambda self, batch, dataloader_idx: ("module", batch)})()
    assert resolve(data=data, module=module).on_after_batch_transfer("b", 0) == ("data", "b")  # type: ignore[misc]
    assert resolve(module=module).on_after_batch_transfer("b", 0) == ("module", "b")  # type: ignore[misc]


class Raising(Callback):
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        raise KeyError("lost")


def test_an_error_in_a_hook_keeps_type_and_traceback_and_gains_a_note() -> None:
    hooks = resolve(callbacks=[Raising()], position=lambda: "fit, epoch 2, rank 0")
    with pytest.raises(KeyError, match="lost") as caught:
        hooks.on_train_epoch_start()
    assert caught.value.__notes__ == ["Raised in hook `on_train_epoch_start` of Raising (fit, epoch 2, rank 0)."]
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "on_train_epoch_start"
    assert frames[-1].line == 'raise KeyError("lost")'
    assert any("call_0" in (frame.line or "") for frame in frames)


class Nesting(ModelHooks):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()

    def on_before_backward(self, loss: Any) -> None:
        raise ValueError("no loss")


def test_only_the_innermost_hook_writes_a_note() -> None:
    hooks = resolve(module=Nesting())
    with pytest.raises(ValueError, match="no loss") as caught:
        hooks.optimizer_step(0, 0, None, lambda: hooks.on_before_backward(None))  # type: ignore[misc]
    assert caught.value.__notes__ == ["Raised in hook `on_before_backward` of Nesting."]


def test_the_note_names_the_one_of_several_receivers_that_raised() -> None:
    calls: list[Any] = []
    hooks = resolve(callbacks=[callback("fine", calls), Raising(), callback("late", calls)])
    with pytest.raises(KeyError) as caught:
        hooks.on_train_epoch_start()
    assert "of Raising" in caught.value.__notes__[0]
    assert [name for name, *_ in calls] == ["fine"]


@pytest.mark.parametrize("hook", ["on_exception", "teardown"])
def test_one_receiver_that_raises_does_not_rob_the_others_of_what_ends_a_run(hook: str) -> None:
    calls: list[Any] = []

    def explode(self: object, *arguments: Any) -> None:
        calls.append("exploding")
        raise OSError("no space")

    exploding = type("Exploding", (Callback,), {hook: explode})
    hooks = resolve(callbacks=[exploding(), exploding()], module=Recorder("module", calls, Receiver.MODULE))
    with pytest.raises(OSError, match="no space") as caught:
        getattr(hooks, hook)("fit")
    assert calls == ["exploding", "exploding", ("module", hook, ("fit",))]
    assert caught.value.__notes__ == [
        f"Raised in hook `{hook}` of Exploding.",
        f"Then OSError: no space Raised in hook `{hook}` of Exploding.",
    ]


def test_a_hook_that_a_third_party_registered_is_dispatched_and_checked() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(HookSpec("on_lunch", "At noon.", (Receiver.CALLBACK, Receiver.MODULE), ("menu",)))
    seen: list[Any] = []

    class Eater(Callback):
        def on_lunch(self, trainer: Any, module: Any, menu: str) -> None:
            seen.append(menu)

    resolve(callbacks=[Eater()], catalogue=catalogue).on_lunch("soup")
    assert seen == ["soup"]
    with pytest.raises(TypeError, match=r"Eater\.on_lunch: no hook has this name"):
        resolve(callbacks=[Eater()])


def test_a_receivers_own_memory_is_no_hook_of_a_run() -> None:
    class Counter(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"count": 1}

    with pytest.raises(AttributeError):
        _ = resolve(callbacks=[Counter()]).state_dict


class Wrapping(Callback):
    """Writes down what it is asked and what then happens."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    def wrap_call(self, hook: str, kind: Receiver, receiver: object, function: Any) -> Any:
        self.seen.append(("asked", self.name, hook, kind, receiver))

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            self.seen.append(("enter", self.name, hook, kind))
            return function(*arguments, **keywords)

        return wrapped


def test_a_callback_may_wrap_every_call_and_is_asked_once_for_each_in_their_order() -> None:
    seen: list[Any] = []
    calls: list[Any] = []
    one, late = callback("one", calls), callback("late", calls, after_module=frozenset({"on_fit_start"}))
    module = Recorder("module", calls, Receiver.MODULE)
    hooks = resolve(callbacks=[late, Wrapping("w", seen), one], module=module, trainer="trainer")
    asked = [(kind, receiver) for _, _, hook, kind, receiver in seen if hook == "on_fit_start"]
    assert asked == [(Receiver.CALLBACK, one), (Receiver.MODULE, module), (Receiver.CALLBACK, late)]
    assert all(word == "asked" for word, *_ in seen) and len({(hook, id(it)) for _, _, hook, _, it in seen}) == len(
        seen
    )
    seen.clear()
    hooks.on_fit_start()
    hooks.on_train_batch_start("b", 3)
    assert [kind for *_, kind in seen[:3]] == [Receiver.CALLBACK, Receiver.MODULE, Receiver.CALLBACK]
    assert calls[0] == ("one", "on_fit_start", ("trainer", module)) and calls[-1][2] == ("b", 3)


def test_of_several_wrapping_callbacks_the_last_is_outermost_and_the_strategy_innermost() -> None:
    class Model(ModelHooks):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return batch

    class Doubling(StrategyHooks):
        def wrap_step(self, step: Any) -> Any:
            seen.append("strategy")
            return lambda *arguments: 2 * step(*arguments)

    seen: list[Any] = []
    callbacks = [Wrapping("first", seen), Wrapping("second", seen)]
    step: Any = resolve(callbacks=callbacks, module=Model(), strategy=Doubling()).training_step
    assert [entry if isinstance(entry, str) else entry[1] for entry in seen] == ["strategy", "first", "second"]
    seen.clear()
    assert step(4, 0) == 8
    assert [(word, name) for word, name, *_ in seen] == [("enter", "second"), ("enter", "first")]


def test_of_a_hook_with_one_owner_only_the_owner_is_wrapped() -> None:
    seen: list[Any] = []
    data = type("Data", (), {"on_after_batch_transfer": lambda self, batch, dataloader_idx: ("data", batch)})()
    module = type("Model", (), {"on_after_batch_transfer": lambda self, batch, dataloader_idx: ("module", batch)})()
    hooks = resolve(callbacks=[Wrapping("w", seen)], data=data, module=module)
    assert hooks.on_after_batch_transfer("b", 0) == ("data", "b")  # type: ignore[misc]
    assert [receiver for word, *_, receiver in seen if word == "asked"] == [data]


def test_an_error_in_a_wrapped_hook_has_the_same_note_and_one_frame_more() -> None:
    def raised(callbacks: list[Any]) -> KeyError:
        with pytest.raises(KeyError, match="lost") as caught:
            resolve(callbacks=callbacks, position=lambda: "fit, rank 0").on_train_epoch_start()
        return caught.value

    def frames(error: BaseException) -> list[tuple[str, str | None]]:
        return [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)][1:]

    plain, wrapped = raised([Raising()]), raised([Wrapping("w", []), Raising()])
    assert wrapped.__notes__ == plain.__notes__ == ["Raised in hook `on_train_epoch_start` of Raising (fit, rank 0)."]
    (first, *rest), (same, between, *others) = frames(plain), frames(wrapped)
    assert between[0] == "wrapped"
    assert (same, others) == (first, rest)


def test_only_callbacks_wrap_calls_and_what_nobody_wraps_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(ModelHooks):
        def wrap_call(self, *arguments: Any) -> Any:
            raise AssertionError("a module is not asked")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return batch

    model = Model()
    step: Any = resolve(callbacks=[Callback()], module=model).training_step
    assert step.__globals__["call_0"] == model.training_step
    wrapped: Any = resolve(callbacks=[Wrapping("w", [])], module=model).training_step
    assert wrapped.__code__ is step.__code__  # only what is called differs


def test_a_hook_that_the_run_does_not_need_may_take_anything_and_is_left_out() -> None:
    class Loading:
        def train_dataloader(self, batch_size: int) -> list[int]:
            return [batch_size]

        def val_dataloader(self) -> list[int]:
            return [1]

    hooks = resolve(module=Loading(), uncalled=["train_dataloader"])
    assert hooks.train_dataloader is None
    assert hooks.val_dataloader is not None and hooks.val_dataloader() == [1]
    with pytest.raises(HookFaultError, match="train_dataloader"):
        resolve(module=Loading())


def received(module: Any, num_loaders: int, *, hook: str = "validation_step", **options: Any) -> Any:
    """What a hook of a module that returns its arguments gets."""
    hooks = resolve(module=module, **options).for_loaders(num_loaders)
    return getattr(hooks, hook)("batch", 3, 1 if num_loaders > 1 else 0)


@pytest.mark.parametrize(
    ("step", "with_one", "with_two"),
    [
        (lambda self, *args: args, ("batch", 3), ("batch", 3, 1)),
        (lambda self, batch, *rest, **others: (batch, *rest), ("batch", 3), ("batch", 3, 1)),
        (lambda self, batch, batch_idx, **others: others, {}, {"dataloader_idx": 1}),
        (lambda self, batch, batch_idx, dataloader_idx=None: dataloader_idx, None, 1),
        (lambda self, batch, batch_idx, loader=-1: loader, -1, 1),
        (lambda self, batch, batch_idx, dataloader_idx=0: dataloader_idx, 0, 1),
        (lambda self, batch, batch_idx, dataloader_idx: dataloader_idx, 0, 1),
        (lambda self, batch, batch_idx, dataset_idx: dataset_idx, 0, 1),
        (lambda self, batch, batch_idx, stage="val": stage, "val", "val"),
    ],
)
def test_the_index_of_a_single_loader_goes_only_to_a_step_that_requires_it(
    step: Any, with_one: Any, with_two: Any
) -> None:
    module = type("Model", (ModelHooks,), {"validation_step": step})()
    assert received(module, 1) == with_one
    assert received(module, 2) == with_two


def test_a_wrapped_step_gets_the_index_of_a_single_loader_only_if_it_requires_it() -> None:
    def wrapped(step: Any) -> Any:
        return functools.wraps(step)(lambda self, *args: (len(args), step(self, *args)))

    required = type("Model", (ModelHooks,), {"validation_step": wrapped(lambda self, x, i, dataloader_idx: x)})()
    optional = type("Model", (ModelHooks,), {"validation_step": wrapped(lambda self, x, i, dataloader_idx=0: x)})()
    assert received(required, 1) == (3, "batch")
    assert received(optional, 1) == (2, "batch")
    assert received(optional, 2) == (3, "batch")


def test_batch_hooks_of_callbacks_get_the_index_of_a_single_loader_only_if_they_require_it() -> None:
    calls: list[Any] = []
    watching = type("Watch", (Callback,), {"on_test_batch_start": lambda self, *args: calls.append(args[2:])})()
    required = type(
        "Needs", (Callback,), {"on_test_batch_start": lambda self, t, m, b, i, dataloader_idx: calls.append((b, i))}
    )()
    hooks = resolve(callbacks=[watching, required], trainer="trainer", module=object())
    hooks.for_loaders(1).on_test_batch_start("batch", 3, 0)
    hooks.for_loaders(2).on_test_batch_start("batch", 3, 1)
    assert calls == [("batch", 3), ("batch", 3), ("batch", 3, 1), ("batch", 3)]


def test_what_is_put_around_a_hook_is_there_for_any_number_of_loaders() -> None:
    module = type("Model", (ModelHooks,), {"validation_step": lambda self, *args: len(args)})()
    hooks = resolve(module=module)
    hooks.wrap("validation_step", lambda step: lambda *args: ("wrapped", step(*args)))
    hooks.wrap("test_step", lambda step: step)
    assert hooks.for_loaders(1).validation_step("batch", 0, 0) == ("wrapped", 2)
    assert hooks.for_loaders(2).validation_step("batch", 0, 0) == ("wrapped", 3)
    assert hooks.for_loaders(2).test_step is None


def test_keyword_arguments_get_what_a_hook_has() -> None:
    class Clipping(ModelHooks):
        def configure_gradient_clipping(self, optimizer: Any, **settings: Any) -> Any:
            return settings

        def setup(self, **settings: Any) -> None:
            stages.append(settings)

    stages: list[Any] = []
    hooks = resolve(module=Clipping())
    assert hooks.configure_gradient_clipping("optimizer", 1.0, "norm") == {
        "gradient_clip_val": 1.0,
        "gradient_clip_algorithm": "norm",
    }
    hooks.setup("fit")
    assert stages == [{"stage": "fit"}]
