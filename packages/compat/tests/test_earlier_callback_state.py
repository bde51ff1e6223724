from __future__ import annotations

from typing import Any

import pytest
from bare_parts import Sized, hooked, make_batches, seeded
from compat_parts import BareTrainer

from camshaft.compat.eras.evidence import takes_state
from camshaft.hooks_core import Callback


class Counting(Callback):
    """Counts training batches, and remembers how many as callbacks of 1.x did."""

    def __init__(self) -> None:
        self.num_batches = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.num_batches += 1


class OfTheTrainer(Counting):
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> dict[str, Any]:
        assert checkpoint["global_step"] == trainer.global_step and pl_module is trainer.module
        return {"num_batches": self.num_batches}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, callback_state: dict[str, Any]) -> None:
        assert pl_module is trainer.module
        self.num_batches = callback_state["num_batches"]


class OfTheState(Counting):
    def on_save_checkpoint(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {"num_batches": self.num_batches}

    def on_load_checkpoint(self, checkpointed_state: dict[str, Any]) -> None:
        self.num_batches = checkpointed_state["num_batches"]


class OfNothing(OfTheState):
    def on_save_checkpoint(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {}


class OfToday(Counting):
    """Has both: its memory is `state_dict`."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> dict[str, Any]:
        return {"num_batches": -1}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["callbacks"] == {type(self).__qualname__: {"num_batches": 2}}

    def state_dict(self) -> dict[str, Any]:
        return {"num_batches": self.num_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_batches = state_dict["num_batches"]


def fit(*callbacks: Any, **arguments: Any) -> BareTrainer:
    trainer = BareTrainer(seeded(), callbacks=callbacks, limit_val_batches=0, max_epochs=arguments.pop("max_epochs", 1))
    return trainer.fit(Sized(make_batches(2)), None, **arguments)


def saving(weights_only: bool = False) -> Callback:
    def save(trainer: Any, _: Any) -> None:
        trainer.save_checkpoint("end", weights_only=weights_only)

    return hooked("Saving", on_train_epoch_end=save)


@pytest.mark.parametrize(("make", "expected"), [(OfTheTrainer, 4), (OfTheState, 4), (OfToday, 4), (OfNothing, 2)])
def test_a_callback_gets_back_what_it_returned(make: Any, expected: int) -> None:
    checkpoint = fit(make(), saving()).load("end")
    callback = make()
    fit(callback, max_epochs=2, checkpoint=checkpoint)
    assert callback.num_batches == expected


def test_the_state_is_kept_under_the_name_of_the_class() -> None:
    checkpoint = fit(OfTheTrainer(), saving()).load("end")
    assert checkpoint["callbacks"] == {"OfTheTrainer": {"num_batches": 2}}


@pytest.mark.parametrize("make", [OfTheTrainer, OfToday])
def test_callbacks_have_no_part_in_checkpoints_of_weights_alone(make: Any) -> None:
    class Marking(make):  # type: ignore[misc]
        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> Any:
            checkpoint["is_marked"] = True
            return super().on_save_checkpoint(trainer, pl_module, checkpoint)

    assert fit(Marking(), saving()).load("end")["is_marked"]
    assert not {"is_marked", "callbacks"} & fit(Marking(), saving(weights_only=True)).load("end").keys()


def test_a_callback_whose_state_is_absent_is_not_asked_to_load_it() -> None:
    checkpoint = fit(saving()).load("end")
    callback = OfTheTrainer()
    fit(callback, max_epochs=2, checkpoint=checkpoint)
    assert callback.num_batches == 2


def test_two_callbacks_with_one_name_are_refused() -> None:
    with pytest.raises(
        ValueError, match="`state_key` must be different for each callback that has a state, as a OfThe"
    ):
        fit(OfTheTrainer(), OfTheTrainer())


def test_which_callbacks_take_a_state() -> None:
    class Named(Callback):
        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None: ...

    class OfCheckpoint(Callback):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...

    class Alone(Callback):
        def on_load_checkpoint(self, state: dict[str, Any]) -> None: ...

    taking = {kind.__name__ for kind in (Named, OfCheckpoint, Alone, OfTheTrainer, OfTheState) if takes_state(kind())}
    assert taking == {"Alone", "OfTheTrainer", "OfTheState"} and not takes_state(Callback())
