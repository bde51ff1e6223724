"""What fit refuses, warns of and leaves out."""

from __future__ import annotations

from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, adam, hooked, make_batches, same_bits, seeded, weights

from camshaft.hooks_core import HookFaultError
from camshaft.loops import CombinedLoader, OptimizationSettings


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"accumulate_grad_batches": 0}, ValueError, "`accumulate_grad_batches` must be at least 1, but got 0"),
        ({"accumulate_grad_batches": 1.5}, TypeError, "`accumulate_grad_batches` must be an int, but got 1.5"),
        ({"accumulate_grad_batches": True}, TypeError, "`accumulate_grad_batches` must be an int, but got True"),
        ({"gradient_clip_val": -0.5}, ValueError, "`gradient_clip_val` must be at least 0, but got -0.5"),
        ({"gradient_clip_val": "1"}, TypeError, "`gradient_clip_val` must be a number or None, but got '1'"),
        (
            {"gradient_clip_val": float("nan")},
            ValueError,
            "must be at least 0, but got nan",
        ),
        ({"gradient_clip_algorithm": "l1"}, ValueError, "`gradient_clip_algorithm` must be 'norm' or 'value'"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        OptimizationSettings(**arguments)


def test_training_that_counts_no_updates_needs_a_number_of_epochs() -> None:
    message = "`max_epochs` must be set if there is no optimizer, since no update will ever be counted"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(lambda module: None), max_steps=3).fit(Sized(make_batches(2)))


def test_two_callbacks_that_would_overwrite_each_others_memory_are_refused() -> None:
    def remembering() -> Any:
        return hooked(state_dict=lambda self: {"a": 1})

    message = "`state_key` must be different for each callback that has a state, as a Hooked has, but got 'Hooked'"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(), callbacks=[remembering(), remembering()], max_epochs=1).fit(Sized(make_batches(2)))


def test_a_module_may_have_no_callbacks_to_add() -> None:
    module = Net()
    object.__setattr__(module, "configure_callbacks", lambda: None)
    trainer = BareTrainer(module, max_epochs=1).fit(Sized(make_batches(2)))
    assert trainer.callbacks == []


def test_a_missing_training_loader_is_an_error() -> None:
    message = "`train loader` must be given, or provided by the data module or the module, but got None"
    with pytest.raises(ValueError, match=message):
        BareTrainer(Net(), max_epochs=1).fit()


class Nested(Net):
    """Remembers the targets of the batches of several loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append([None if part is None else part[1][0].item() for part in batch.values()])
        return sum(self.loss(part) for part in batch.values() if part is not None)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, [["a0", "b0"], ["a1", "b1"], ["a0", "b2"]]),
        ("max_size", [["a0", "b0"], ["a1", "b1"], [None, "b2"]]),
        ("min_size", [["a0", "b0"], ["a1", "b1"]]),
    ],
)
def test_several_training_loaders_are_combined(mode: Any, expected: list[list[Any]]) -> None:
    module, a, b = seeded(Nested), make_batches(2, seed=1), make_batches(3, seed=2)
    names = {
        batch[1][0].item(): f"{name}{idx}" for name, part in (("a", a), ("b", b)) for idx, batch in enumerate(part)
    }
    loaders = {"a": Sized(a), "b": Sized(b)}
    trainer = BareTrainer(module, max_epochs=2).fit(loaders if mode is None else CombinedLoader(loaders, mode))
    assert [[names.get(part) for part in step] for step in module.seen] == expected * 2
    assert trainer.global_step == trainer.progress.total_batches == 2 * len(expected)


def test_a_list_with_one_training_loader_gives_lists() -> None:
    class Listed(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            (only,) = batch
            return self.loss(only)

    assert BareTrainer(Listed(), max_epochs=1).fit([Sized(make_batches(2))], Sized([])).global_step == 2


@pytest.mark.parametrize("missing", ["training_step", "configure_optimizers"])
def test_a_module_without_what_fit_needs_is_refused(missing: str) -> None:
    module = type("Lacking", (Net,), {missing: None})()
    with pytest.raises(HookFaultError, match=f"Lacking.{missing}: `{missing}` must be defined to run this verb"):
        BareTrainer(module, max_epochs=1).fit(Sized([]))


def test_an_empty_training_loader_is_a_warning_and_nothing_is_trained() -> None:
    called: list[str] = []
    names = ["on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_end", "on_fit_end", "teardown"]
    callback = hooked(**{name: lambda *_, name=name: called.append(name) for name in names})
    with pytest.warns(UserWarning, match="The training loader is empty: nothing will be trained"):
        BareTrainer(Net(), callbacks=[callback], max_epochs=1).fit(Sized([]), Sized(make_batches(1)))
    assert called == ["on_fit_start", "on_fit_end", "teardown"]


def test_a_validation_step_without_a_loader_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="There is a `validation_step` but no validation loader"):
        BareTrainer(Net(), max_epochs=1).fit(Sized(make_batches(1)))


def test_a_validation_loader_without_a_step_is_a_warning() -> None:
    module = type("Lacking", (Net,), {"validation_step": None})()
    with pytest.warns(UserWarning, match="There is a validation loader but no `validation_step`"):
        BareTrainer(module, max_epochs=1, num_sanity_val_steps=1).fit(Sized(make_batches(1)), Sized(make_batches(1)))


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
def test_a_loader_that_is_used_up_is_an_error_and_does_not_train_on_nothing_for_ever() -> None:
    message = r"`train loader` must give batches in every epoch, but got none in epoch 1 \(generator\) in fit"
    trainer = BareTrainer(Net(), max_steps=10)
    with pytest.raises(RuntimeError, match=message):
        trainer.fit(batch for batch in make_batches(4))
    assert trainer.global_step == 4


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
def test_a_second_fit_goes_on_where_the_first_ended() -> None:
    counts: list[tuple[int, int]] = []
    callback = hooked(
        on_train_batch_start=lambda trainer, *_: counts.append((trainer.progress.current_epoch, trainer.global_step))
    )
    trainer = BareTrainer(seeded(), callbacks=[callback], max_epochs=1)
    trainer.fit(Sized(make_batches(2)))
    trainer.fit(Sized(make_batches(2)))
    assert counts == [(0, 0), (0, 1)], "the limit is reached"
    longer = BareTrainer(seeded(), max_epochs=3, callbacks=[callback])
    trainer.fit_loop.limits = longer.fit_loop.limits
    trainer.fit(Sized(make_batches(2)))
    assert counts[2:] == [(1, 2), (1, 3), (2, 4), (2, 5)]


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
def test_the_last_batch_is_known_while_it_runs() -> None:
    known: list[bool] = []
    callback = hooked(on_train_batch_start=lambda trainer, *_: known.append(trainer.fit_loop.is_last_batch))
    trainer = BareTrainer(Net(), callbacks=[callback], max_epochs=2)
    assert not trainer.fit_loop.is_last_batch
    trainer.fit(Sized(make_batches(3)))
    assert known == [False, False, True] * 2


@pytest.mark.filterwarnings("ignore:There is a `validation_step`")
def test_a_window_that_a_skip_cut_short_leaves_nothing_to_the_next_epoch() -> None:
    def skip(trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 and trainer.progress.current_epoch == 0 else None

    batches = make_batches(2)
    skipping = seeded(Net, adam)
    trainer = BareTrainer(
        skipping, callbacks=[hooked(on_train_batch_start=skip)], max_epochs=2, accumulate_grad_batches=2
    )
    trainer.fit(Sized(batches))
    other = seeded(Net, adam)
    BareTrainer(other, max_epochs=1, accumulate_grad_batches=2).fit(Sized(batches))
    assert trainer.global_step == 1
    assert same_bits(weights(skipping), weights(other))


@pytest.mark.parametrize(
    ("arguments", "freed"),
    [({}, [True] * 4), ({"accumulate_grad_batches": 2}, [False, True, False, True]), ({"manual": True}, [False] * 4)],
)
def test_gradients_are_freed_before_validation_unless_somebody_waits_for_them(
    arguments: dict[str, Any], freed: list[bool]
) -> None:
    class Own(Net):
        automatic_optimization = not arguments.pop("manual", False)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            if not self.automatic_optimization:
                loss.backward()
            return loss

    seen: list[bool] = []
    callback = hooked(
        on_validation_start=lambda trainer, module: seen.append(all(p.grad is None for p in module.parameters()))
    )
    trainer = BareTrainer(Own(), callbacks=[callback], max_epochs=1, val_check_interval=1, **arguments)
    trainer.fit(Sized(make_batches(4)), Sized(make_batches(1)))
    assert seen == freed
