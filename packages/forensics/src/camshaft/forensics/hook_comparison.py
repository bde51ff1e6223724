"""Detection of diverging processes: each records its hooks, and they compare them every few updates."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from camshaft.callbacks.arguments import check_number
from camshaft.hooks_core import Callback, Receiver
from camshaft.hooks_core.dispatch.implementation import ReceiverNames

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol

_NUM_SHOWN = 5
_OF_EACH_PROCESS = {
    "prepare_data",
    "on_exception",
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
    *(f"{stage}_step" for stage in ("validation", "test", "predict")),
    *(f"on_{stage}_batch_{end}" for stage in ("validation", "test", "predict") for end in ("start", "end")),
}
"""Hooks that some processes receive and others do not, as each has batches of its own to evaluate."""


class HookDivergenceError(RuntimeError):
    """Processes did not call the same hooks in the same order.

    Attributes:
        position: Index of the first call that differs, since they compared last.
        by_rank: Call of each process there, as "hook of receiver"; None if it called nothing more.
    """

    def __init__(self, position: int, by_rank: Mapping[int, str | None], where: str) -> None:
        self.position = position
        self.by_rank = dict(by_rank)
        got = ", ".join(f"{call or 'nothing more'} on rank {rank}" for rank, call in by_rank.items())
        super().__init__(
            f"`hooks` must be called in the same order on all ranks, but got {got} as call {position} {where}. Let "
            "callbacks, hooks and whatever calls them not depend on the rank."
        )


class HookComparison(Callback):
    """Records the hooks that the receivers of a run implement, and compares them between processes.

    Hooks of evaluation batches are left out, since each process has batches of its own. An error that is raised in
    between gains a note with the last hooks, for processes that wait for each other in different places.

    Args:
        every_n_steps: Updates between two comparisons.

    Raises:
        InvalidArgumentError: If `every_n_steps` is no positive int.
        HookDivergenceError: If processes have called other hooks; it names the first that differs.
    """

    only_observes = True

    def __init__(self, every_n_steps: int) -> None:
        check_number(type(self).__name__, least=1, is_int=True, every_n_steps=every_n_steps)
        self._every_n_steps = every_n_steps
        self._num_intervals = 0
        self._step = 0
        self._names = ReceiverNames()
        self._calls: list[str] = []

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a call that is recorded, unless it is this callback's or of an evaluation batch.

        Args:
            hook: The name of the hook.
            kind: The kind of the receiver.
            receiver: The receiver.
            function: What is called.
        """
        self._calls.clear()  # of an earlier run: while hooks are resolved, none is called
        if receiver is self or hook in _OF_EACH_PROCESS:
            return function
        call, record = f"`{hook}` of {kind}:{self._names.name(receiver)}", self._calls.append

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            record(call)
            return function(*arguments, **keywords)

        return recorded

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Forget the receivers' names, now that the hooks are resolved."""
        self._names.clear()

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Count updates from here, where training begins or goes on."""
        self._num_intervals = trainer.global_step // self._every_n_steps
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compare if it is due. Collective then."""
        num_intervals = trainer.global_step // self._every_n_steps
        if num_intervals != self._num_intervals:
            self._num_intervals = num_intervals
            self._compare(trainer, f"after update {self._step} (epoch {trainer.current_epoch}, batch {batch_idx})")
            self._step = trainer.global_step

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Compare the rest. Collective."""
        self._compare(trainer, f"after update {self._step} (at the end of training)")

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Note the last hooks on an error that the comparison could not prevent."""
        calls = self._calls[-_NUM_SHOWN:]
        if calls and not isinstance(exception, HookDivergenceError):
            rank = trainer.strategy.global_rank
            exception.add_note(f"The last hooks of rank {rank} since the ranks compared: {', '.join(calls)}.")

    def _compare(self, trainer: TrainerProtocol, where: str) -> None:
        strategy, calls = trainer.strategy, self._calls
        checksums = strategy.all_gather(zlib.crc32("\n".join(calls).encode()))
        if len(set(checksums)) > 1:
            position, by_rank = _first_divergence(strategy.all_gather(calls))
            raise HookDivergenceError(position, by_rank, where)
        calls.clear()


def _first_divergence(calls_of_ranks: Sequence[Sequence[str]]) -> tuple[int, dict[int, str | None]]:
    """Return the first position at which the calls differ, and what each rank called there, None where it had ended."""
    positions = enumerate(zip_longest(*calls_of_ranks))
    return next((position, dict(enumerate(there))) for position, there in positions if len(set(there)) > 1)
