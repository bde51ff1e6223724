"""`bisect`: the first update after which something holds, by replays of half the distance each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.finders.trials import any_rank
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.forensics.replay.step import Observer, fit_again, ledger_check
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import is_url
from camshaft.loops import SaveRequest
from camshaft.loops.fit.trial import rollback
from camshaft.trainer.running import VerbCall

if TYPE_CHECKING:
    from camshaft.trainer import Trainer

_WHERE = "bisect"


def bisect(
    trainer: Trainer,
    model: Any,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    datamodule: Any = None,
    *,
    good: str | os.PathLike[str],
    bad: str | os.PathLike[str],
    when: Callable[[Any], bool],
    ledger: str | os.PathLike[str] | None = None,
    weights_only: bool | None = None,
) -> int:
    """Find the first update after which something holds of the module. Collective.

    It replays half of the distance between two checkpoints, as `replay` does, looks, and goes on in the half where
    the change is, from a state that it keeps in a temporary folder; so all replays together are as long as the
    distance at most. If the answer changes more often than once, the step that is found is one at which it turns.
    Afterwards the module has the state in which the last replay ended.

    Args:
        trainer: The trainer, made as for the fit.
        model: The module.
        train_dataloaders: As in `Trainer.fit`.
        val_dataloaders: As in `Trainer.fit`.
        datamodule: As in `Trainer.fit`.
        good: A checkpoint of the run at which `when` is false.
        bad: A later one at which it is true.
        when: A function of the module. It is called without gradients, with its random numbers, logs and metrics
            undone, where a checkpoint could be saved. True in one process counts for all.
        ledger: As in `replay`.
        weights_only: As in `Trainer.fit`.

    Returns:
        The number of the update, counted from 1.

    Raises:
        TypeError, ValueError: As in `replay`; or if `when` is true at `good` or false at `bad`, or `bad` is not
            later.
        RuntimeError: If the replays do not come to what `bad` is.
        FileNotFoundError, LedgerError, DepartureError: As in `replay`.
    """
    if not callable(when):
        action = "Pass a function that returns a bool."
        raise TypeError(must_be("when", "a function of the module", when, _WHERE, action))
    loaders = {"train": train_dataloaders, "validate": val_dataloaders}
    call = VerbCall("fit", model, loaders, datamodule, None, weights_only)
    with _temporary_folder(trainer) as folder:
        return _Bisection(trainer, call, when, ledger, folder).run(good, bad)


@attrs.frozen
class _Bisection:
    """One search."""

    _trainer: Trainer
    _call: VerbCall
    _when: Callable[[nn.Module], bool]
    _ledger: str | os.PathLike[str] | None
    _folder: str

    def run(self, good: str | os.PathLike[str], bad: str | os.PathLike[str]) -> int:
        """Return the first step after `good` at which the predicate holds."""
        first, last = (self._replay(path, None, _LookAtStart(self._when)) for path in (good, bad))
        if last.step <= first.step:
            rule = f"a later checkpoint than `good`, which is of step {first.step:,}"
            raise InvalidArgumentError("bad", rule, f"step {last.step:,}", _WHERE, "Swap them, or pass others.")
        for name, look in (("good", first), ("bad", last)):
            if look.holds is not (look is last):
                rule = f"a checkpoint at which the predicate is {look is last}"
                action = "Pass one before the change as `good` and one after it as `bad`."
                raise InvalidArgumentError(name, rule, f"{look.holds} at step {look.step:,}", _WHERE, action)
        return self._search(first.step, good, last.step)

    def _search(self, low: int, low_path: str | os.PathLike[str], high: int) -> int:
        """Return the first step after `low`, whose state is at a path, where the predicate is true, as at `high`."""
        ceiling, is_confirmed = high, False  # no state between `ceiling` and `high` can be saved
        while ceiling - low > 1:
            middle = (low + ceiling) // 2
            path = os.path.join(self._folder, f"{middle}.ckpt")
            look = self._replay(low_path, high, _LookAt(self._when, middle, path), saved_path=path)
            if look.holds:
                high, ceiling, is_confirmed = min(high, look.step), middle, True
            elif look.step >= high:
                raise _not_repeated(high)
            else:
                if os.path.dirname(low_path) == self._folder and self._trainer.is_global_zero:
                    shutil.rmtree(low_path) if os.path.isdir(low_path) else os.remove(low_path)
                low, low_path = look.step, path
                ceiling = max(ceiling, low)
        if high - low == 1 and is_confirmed:
            return high
        scan = self._replay(low_path, high, _Scan(self._when, low))
        if not scan.holds:
            raise _not_repeated(high)
        return scan.step

    def _replay(
        self, path: str | os.PathLike[str], to_step: int | None, look: _Look, saved_path: str | None = None
    ) -> _Look:
        if to_step is not None:
            look.check = ledger_check(self._trainer, self._ledger)
        call = attrs.evolve(self._call, ckpt_path=path)
        fit_again(self._trainer, call, look, to_step=to_step, saved_path=saved_path)
        if to_step is not None and not look.has_ended:
            raise _not_repeated(to_step)
        return look


def _not_repeated(step: int) -> RuntimeError:
    return RuntimeError(
        f"A replay must come to step {step:,} of the run again, with the same result of the predicate, but got another "
        "one. The run is not deterministic, or module, data or arguments are not its own: pass `ledger` to find the "
        "cause."
    )


class _Look(Observer):
    """Evaluates a predicate in a replay.

    Attributes:
        holds: What it returned last.
        step: The number of updates then.
    """

    def __init__(self, when: Callable[[nn.Module], bool], step: int = 0) -> None:
        self.holds, self.step = False, step
        self._when = when

    def look(self) -> bool:
        """Return whether the predicate holds in any process, and leave no trace. Collective."""
        trainer, run = self.trainer, self.trainer.current_run
        with rollback(run, trainer.fit_loop.data), trainer.silenced(), torch.no_grad():
            holds = bool(self._when(run.module))
        self.holds, self.step = any_rank(trainer.strategy, holds), trainer.global_step
        return self.holds


class _LookAtStart(_Look):
    """Looks at the weights of a checkpoint."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Look, and end."""
        self.look()
        self.step = trainer.current_run.checkpoint["global_step"]
        self.end(self.step)


class _LookAt(_Look):
    """Looks where the first checkpoint at a step or later would be saved, and saves it unless the predicate holds."""

    def __init__(self, when: Callable[[nn.Module], bool], step: int, path: str) -> None:
        super().__init__(when)
        self._at, self._path, self._is_asked = step, path, False

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the end of the batch, or of the epoch with it."""
        if trainer.global_step >= self._at and not self._is_asked:
            self._is_asked = True
            trainer.at_save_point(self._look_and_save)

    def _look_and_save(self) -> None:
        if not self.look():
            run = self.trainer.current_run
            run.request_save(SaveRequest(self._path))
            run.finish_saving()
        self.end(self.step)


class _Scan(_Look):
    """Looks after every update, also inside of batches, until the predicate holds."""

    def call_step(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Look before the next step."""
        self._see()
        return function(*arguments, **keywords)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look after the last update of a batch."""
        self._see()

    def _see(self) -> None:
        if self.trainer.global_step > self.step and self.look():
            self.end(self.step)


@contextmanager
def _temporary_folder(trainer: Trainer) -> Iterator[str]:
    """Yield a folder that all processes reach, and remove it afterwards."""
    root = trainer.default_root_dir
    parent = root if trainer.num_nodes > 1 and not is_url(root) else None
    if trainer.world_size > 1:
        trainer.strategy.connect()
    folder = from_rank_zero(trainer.strategy, lambda: tempfile.mkdtemp(prefix="bisect-", dir=parent))
    try:
        yield folder
    finally:
        if trainer.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)
