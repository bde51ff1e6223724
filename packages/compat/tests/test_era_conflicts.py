from __future__ import annotations

import pytest

from camshaft.compat.eras import conflicts, read_era
from camshaft.hooks_core import Fault, Receiver


def found(klass: type, kind: Receiver = Receiver.MODULE) -> list[Fault]:
    return conflicts(klass, read_era(klass, kind))


class Gan08:
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, second_order_closure=None):
        optimizer.step()
        optimizer.zero_grad()

    def on_before_zero_grad(self, optimizer): ...

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer, optimizer_idx): ...


class Gan15:
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, **kwargs):
        optimizer.step(closure=optimizer_closure)

    def on_before_optimizer_step(self, optimizer, optimizer_idx): ...

    def configure_gradient_clipping(self, optimizer, optimizer_idx, gradient_clip_val, gradient_clip_algorithm): ...


class Both:
    def on_epoch_start(self): ...

    def on_train_epoch_start(self): ...

    def validation_epoch_end(self, outputs): ...

    def on_validation_epoch_end(self): ...


class Today:
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure): ...

    def on_before_optimizer_step(self, optimizer): ...


class Passing(Gan15):
    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)


class LeavesOut:
    """Does nothing at all, which some releases took for a batch that is left out."""

    hook_era = "1.4"

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, **kwargs): ...


@pytest.mark.parametrize("klass", [Gan08, Gan15, Both, Today, Passing, LeavesOut])
def test_what_is_clear_is_no_conflict(klass: type) -> None:
    assert found(klass) == []


def test_old_hooks_of_a_class_that_declares_itself_of_today_are_refused() -> None:
    class Declared:
        hook_era = "2.x"

        def on_epoch_end(self): ...

        def on_train_epoch_end(self, outputs): ...

        def on_train_start(self): ...

    assert [(one.method, one.message.partition(". ")[0]) for one in found(Declared)] == [
        ("on_epoch_end", "`hook_era` says '2.x', but this hook belongs to the eras 0.5, 0.7, 0.8, 1.x"),
        ("on_train_epoch_end", "`hook_era` says '2.x', but this signature of it belongs to the eras 1.x"),
    ]


def test_an_update_of_0_x_in_a_class_of_1_x_is_refused() -> None:
    class Mixed(Both):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, second_order_closure=None): ...

        def on_before_backward(self, loss): ...

        def on_train_epoch_end(self, outputs): ...

        def on_before_optimizer_step(self, optimizer, optimizer_idx): ...

    (conflict,) = found(Mixed)
    assert conflict.method == "optimizer_step"
    assert conflict.message == (
        "it is one of era 0.8, where backward runs before it, but other hooks of the class are of era 1.x, where "
        "backward runs in its closure. Declare the release that it was written for as `hook_era`."
    )


def test_an_update_of_1_x_in_a_class_of_0_x_is_refused_unless_its_era_is_declared() -> None:
    class Mixed:
        def training_step(self, batch, batch_idx):
            return {"loss": batch, "log": {}}

        def on_pre_performance_check(self): ...

        def on_batch_start(self, batch): ...

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure):
            optimizer.step(optimizer_closure)

    (conflict,) = found(Mixed)
    assert "it is one of era 1.x, where backward runs in its closure, but other hooks of the class are of era 0.8" in (
        conflict.message
    )
    assert found(type("Declared", (Mixed,), {"hook_era": "0.9"})) == []


def test_an_update_of_today_in_a_class_of_0_x_is_refused() -> None:
    class Mixed(Today):
        hook_era = "0.7"

    conflict, *_ = found(Mixed)
    assert conflict.method == "optimizer_step"
    assert conflict.message.startswith("its arguments are those of era 2.x, whose closure runs training_step and ")
    assert "one of era 0.7, where backward has run by then. Take (epoch, batch_idx, optimizer, " in conflict.message


def test_an_update_that_leaves_its_closure_alone_is_refused() -> None:
    class Idle:
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure):
            optimizer.step()

    (conflict,) = found(Idle)
    assert "leaves `optimizer_closure` alone, which runs training_step and backward in era 1.x, so nothing would" in (
        conflict.message
    )
    assert 'Call `optimizer.step(closure=optimizer_closure)`, or declare `hook_era = "0.9"`' in conflict.message
    assert found(type("Declared", (Idle,), {"hook_era": "0.9"})) == []


def test_an_update_that_hands_its_closure_on_is_none_that_learns_nothing() -> None:
    class Wrapped(Gan15):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, closure):
            def again():
                return closure()

            optimizer.step(again)

    assert found(Wrapped) == []


@pytest.mark.parametrize("hook", ["on_before_optimizer_step", "configure_gradient_clipping"])
def test_parts_of_todays_update_beside_a_whole_one_are_refused(hook: str) -> None:
    mixed = type("Mixed", (Gan08,), {hook: getattr(Gan15, hook), "hook_era": "0.8"})
    assert found(mixed) == [
        Fault(
            "Mixed",
            hook,
            "it is a part of the update of later releases, but the class has an `optimizer_step` of era 0.8, which "
            "follows backward and is the whole update. Do this in `optimizer_step`.",
        )
    ]


@pytest.mark.parametrize("era", ["0.5", "0.7.6"])
def test_zeroing_both_in_the_update_and_in_a_hook_of_its_own_is_refused_before_0_8(era: str) -> None:
    (conflict,) = found(type("Twice", (Gan08,), {"hook_era": era}))
    assert conflict.method == "optimizer_zero_grad"
    assert conflict.message.startswith(f"era {era} does not have it, and the class's `optimizer_step` zeroes gradients")
