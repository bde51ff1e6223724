"""Validation, test and prediction as verbs of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bare_parts import LOADER_KINDS, BareStrategy, BareTrainer, Net, Sized, Unsized, hooked, make_batches, make_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import OVERRIDES, Data, override
from torch import nn

from camshaft.hooks_core import Callback, HookFaultError
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import PredictLoop, TestLoop, ValidationLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LOOPS = {"validate": ValidationLoop, "test": TestLoop, "predict": PredictLoop}
WORDS = {"validate": "validation", "test": "test", "predict": "predict"}
VERBS = sorted(LOOPS)


class After(Callback):
    after_module = frozenset({"on_validation_start", "on_test_batch_end", "on_predict_batch_start", "teardown"})


@settings(max_examples=60, deadline=None)
@given(
    verb=st.sampled_from(VERBS),
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    kind=st.sampled_from(LOADER_KINDS),
    limit=st.sampled_from([1.0, 0, 1, 2, 5]),
    inference_mode=st.booleans(),
    overrides=st.frozensets(st.sampled_from(sorted(OVERRIDES))),
)
def test_every_evaluation_follows_the_life_cycle(
    verb: Any, counts: list[int], kind: str, limit: Any, inference_mode: bool, overrides: frozenset[str]
) -> None:
    module, strategy, callbacks, data = Net(), BareStrategy(), [hooked(), After()], Data()
    override(module, *overrides)
    trace = Trace()
    for callback in callbacks:
        trace.record(callback, "callback")
    trace.record(data, "data")
    trace.record(module, "module")
    trace.record(strategy, "strategy")
    trainer = BareTrainer(module, callbacks=callbacks, strategy=strategy, data=data)
    loop = LOOPS[verb](limit_batches=limit, inference_mode=inference_mode)
    trainer.verb(verb, loop, [make_loader(kind, make_batches(count)) for count in counts])
    check(trace, verb)
    steps = [event for event in trace if event.kind == "enter" and event.hook == f"{WORDS[verb]}_step"]
    expected = [
        f"batch_idx={batch_idx}, dataloader_idx={dataloader_idx}"
        for dataloader_idx, count in enumerate(counts)
        for batch_idx in range(count if isinstance(limit, float) else min(count, limit))
    ]
    assert [event.arguments.split(", ", 1)[1] for event in steps if event.arguments] == expected


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("inference_mode", [True, False])
def test_gradients_are_off_and_inference_mode_is_as_wanted(verb: Any, inference_mode: bool) -> None:
    seen: list[tuple[bool, bool, bool]] = []

    class Looking(Net):
        def forward(self, x: Any) -> Any:
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), self.training))
            return super().forward(x)

    loop = LOOPS[verb](inference_mode=inference_mode)
    BareTrainer(Looking()).verb(verb, loop, Sized(make_batches(1)))
    assert seen == [(False, inference_mode, False)]
    assert torch.is_grad_enabled()


class FrozenNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3).eval()
        self.seen: list[list[bool]] = []

    def forward(self, x: Any) -> Any:
        self.seen.append([module.training for module in self.modules()])
        return super().forward(self.norm(x))


@pytest.mark.parametrize("verb", VERBS)
def test_each_submodule_gets_its_own_mode_back(verb: Any) -> None:
    net = FrozenNorm()
    before = [module.training for module in net.modules()]
    BareTrainer(net).verb(verb, LOOPS[verb](), Sized(make_batches(1)))
    assert not any(net.seen[0])
    assert [module.training for module in net.modules()] == before
    assert not net.norm.training


def test_validation_inside_fit_gives_each_submodule_its_own_mode_back() -> None:
    net = FrozenNorm()
    statistics = net.norm.running_mean.clone()
    BareTrainer(net, max_epochs=1, val_check_interval=1, num_sanity_val_steps=1).fit(
        Sized(make_batches(2)), Sized(make_batches(1))
    )
    training = [*[True] * 4, False]
    assert net.seen == [[False] * 5, training, [False] * 5, training, [False] * 5]
    assert torch.equal(net.norm.running_mean, statistics)


@pytest.mark.parametrize("verb", VERBS)
def test_overrides_of_the_modes_take_the_place_of_the_defaults(verb: Any) -> None:
    net, calls = FrozenNorm(), []
    object.__setattr__(net, f"on_{WORDS[verb]}_model_eval", lambda: calls.append("eval"))
    object.__setattr__(net, f"on_{WORDS[verb]}_model_train", lambda: calls.append("train"))
    BareTrainer(net).verb(verb, LOOPS[verb](), Sized(make_batches(1)))
    assert calls == ["eval", "train"]
    assert net.seen[0][0], "the default would have left the training mode"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("limit", "number"), [(1.0, 4), (0.5, 2), (2, 2), (9, 4)])
def test_a_limit_takes_so_many_batches_of_each_loader(verb: Any, limit: float, number: int) -> None:
    taken: list[tuple[int, int]] = []
    hook = f"on_{WORDS[verb]}_batch_start"
    callback = hooked(**{hook: lambda trainer, module, batch, batch_idx, idx: taken.append((idx, batch_idx))})
    loop = LOOPS[verb](limit_batches=limit)
    BareTrainer(Net(), callbacks=[callback]).verb(verb, loop, [Sized(make_batches(4)), Sized(make_batches(4))])
    assert taken == [(idx, batch_idx) for idx in (0, 1) for batch_idx in range(number)]
    assert loop.num_batches == [number, number]


@pytest.mark.parametrize("verb", VERBS)
def test_a_limit_of_none_asks_for_no_loader(verb: Any) -> None:
    net = Net()
    object.__setattr__(net, f"{WORDS[verb].replace('validation', 'val')}_dataloader", lambda: pytest.fail("asked"))
    loop = LOOPS[verb](limit_batches=0)
    assert BareTrainer(net).verb(verb, loop, None) == []
    assert loop.loaders == loop.num_batches == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("num_loaders", [1, 2])
def test_a_variadic_step_gets_the_index_of_its_loader_where_there_are_several(verb: Any, num_loaders: int) -> None:
    received: list[tuple[Any, ...]] = []

    class Variadic(Net):
        def shared(self, *args: Any) -> None:
            received.append(args[1:])

        validation_step = test_step = predict_step = shared

    loaders = [Sized(make_batches(1)) for _ in range(num_loaders)]
    BareTrainer(Variadic()).verb(verb, LOOPS[verb](), loaders)
    assert received == ([(0,)] if num_loaders == 1 else [(0, 0), (0, 1)])


def test_a_variadic_step_is_called_alike_in_the_sanity_check_and_in_fit() -> None:
    received: list[tuple[Any, ...]] = []

    class Variadic(Net):
        def validation_step(self, *args: Any) -> None:
            received.append(args[1:])

    trainer = BareTrainer(Variadic(), max_epochs=1, num_sanity_val_steps=1)
    trainer.fit(Sized(make_batches(1)), Sized(make_batches(2)))
    assert received == [(0,), (0,), (1,)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_loader_is_an_error(verb: Any) -> None:
    message = f"`{verb} loaders` must be given, or provided by the data module or the module, but got None"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net()).verb(verb, LOOPS[verb](), None)


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_missing_step_is_an_error(verb: Any) -> None:
    class Bare(nn.Module):
        pass

    with pytest.raises(HookFaultError, match=f"`{WORDS[verb]}_step` must be defined to run this verb"):
        BareTrainer(Bare()).verb(verb, LOOPS[verb](), Sized(make_batches(1)))


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_without_a_metric_sink_the_result_is_an_empty_dictionary_per_loader(verb: Any) -> None:
    loaders = [Sized(make_batches(1)), Sized(make_batches(2))]
    assert BareTrainer(Net()).verb(verb, LOOPS[verb](), loaders) == [{}, {}]


@pytest.mark.parametrize("limit", [-1, -0.5, 1.5, float("nan")])
def test_a_limit_out_of_range_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=r"`limit_test_batches` must be at least 0, and at most 1.0 as a float"):
        TestLoop(limit_batches=limit)


@pytest.mark.parametrize("limit", [True, "all", None])
def test_a_limit_of_another_type_is_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match="`limit_predict_batches` must be an int or a float"):
        PredictLoop(limit_batches=limit)


def test_a_share_of_a_loader_of_unknown_length_is_refused() -> None:
    message = "`limit_val_batches` must be 1.0 or an int for a loader of unknown length, but got 0.5"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net()).verb("validate", ValidationLoop(limit_batches=0.5), Unsized(make_batches(2)))


def test_validation_inside_fit_makes_no_inference_tensors_that_training_could_not_use() -> None:
    class Keeping(Net):
        kept: Any = None

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            assert not torch.is_grad_enabled()
            self.kept = self(batch[0])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            return loss if self.kept is None else loss * self.kept.sum()

    trainer = BareTrainer(Keeping(), max_epochs=1, num_sanity_val_steps=1, val_check_interval=1)
    assert trainer.fit(Sized(make_batches(2)), Sized(make_batches(1))).global_step == 2
