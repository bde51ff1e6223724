"""Warnings point at the line of the user's that led to them, not into the loops."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from bare_parts import BareTrainer, Net, Sized, hooked, make_batches, seeded, sgd
from resumable_data import Noisy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from camshaft.loops import Run, run_verb


def warned(verb: Any, *words: str) -> list[tuple[str, int]]:
    """Where the warnings with these words point to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verb()
    return [(each.filename, each.lineno) for each in caught if any(word in str(each.message) for word in words)]


def fit(trainer: BareTrainer, checkpoint: Any = None, train: Any = None, val: Any = None) -> tuple[str, int]:
    """Fit as a user's own trainer does. Returns the place of the call."""
    trainer.run = Run(
        verb="fit",
        module=trainer.module,
        strategy=trainer.strategy,
        trainer=trainer,
        callbacks=trainer.callbacks,
        loaders={"train": Sized(make_batches(2)) if train is None else train, "validate": val},
        checkpoint=checkpoint,
        write_checkpoint=trainer._write,
    )
    line = sys._getframe().f_lineno + 1
    run_verb(trainer.run, trainer.fit_loop)
    return __file__, line


def saved_inside() -> dict[str, Any]:
    """A checkpoint of a loader without state."""
    callback = hooked(on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint("file"))
    trainer = BareTrainer(seeded(), callbacks=[callback], max_steps=1)
    trainer.fit(Sized(make_batches(2)))
    return trainer.load("file")


def plateau(module: Any) -> Any:
    optimizer = sgd(module)
    scheduler = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss", "strict": False}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("words", "trainer", "given"),
    [
        ("There is a `validation_step` but no", lambda: BareTrainer(Net(), max_epochs=1), lambda: {}),
        ("The training loader is empty", lambda: BareTrainer(Net(), max_epochs=1), lambda: {"train": Sized([])}),
        (
            "There is a validation loader but no",
            lambda: BareTrainer(type("Lacking", (Net,), {"validation_step": None})(), max_epochs=1),
            lambda: {"val": Sized(make_batches(1))},
        ),
        (
            "`overfit_batches` takes the same batches",
            lambda: BareTrainer(Net(), max_epochs=1, overfit_batches=1),
            lambda: {"train": DataLoader(Noisy(4), shuffle=True)},
        ),
        (
            "has no state that restores it: the batches",
            lambda: BareTrainer(Net(), max_epochs=1, stateless_loaders="fast_forward"),
            lambda: {"checkpoint": saved_inside()},
        ),
        ("`monitor` must be a logged value", lambda: BareTrainer(Net(plateau), max_epochs=1), lambda: {}),
    ],
)
def test_a_warning_of_a_fit_points_at_the_users_call(words: str, trainer: Any, given: Any) -> None:
    made, arguments = trainer(), given()
    places: list[Any] = []
    found = warned(lambda: places.append(fit(made, **arguments)), words)
    assert found == places


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_inside_of_a_batch_warns_there_too() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("boom")

    save = hooked(on_train_batch_end=fail, on_exception=lambda trainer, *_: trainer.save_checkpoint("file"))
    first = BareTrainer(seeded(), callbacks=[save], max_epochs=1, stateless_loaders="fast_forward")
    with pytest.raises(ValueError, match="boom"):
        first.fit(Sized(make_batches(2)))
    second = BareTrainer(seeded(), max_epochs=1, stateless_loaders="fast_forward")
    places: list[Any] = []
    found = warned(lambda: places.append(fit(second, first.load("file"))), "inside of batch", "has no state")
    assert found == places * 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_warning_of_a_save_that_a_hook_did_at_once_points_at_the_hook() -> None:
    lines: list[int] = []

    def save(trainer: Any, *_: Any) -> None:
        lines.append(sys._getframe().f_lineno + 1)
        trainer.fit_loop.state_dict(trainer.run)

    trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_batch_end=save)], max_steps=1)
    found = warned(lambda: trainer.fit(Sized(make_batches(2))), "`train loader` must be one with a state")
    assert found == [(__file__, line) for line in lines]
