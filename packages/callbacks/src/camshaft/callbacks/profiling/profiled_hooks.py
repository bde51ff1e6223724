"""Callback that lets a profiler measure every hook."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from camshaft.callbacks.profiling.action_profilers import ActionProfiler
from camshaft.hooks_core import Callback, Receiver

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_KINDS = {Receiver.MODULE: "LightningModule", Receiver.DATA: "LightningDataModule", Receiver.STRATEGY: "Strategy"}


class ProfiledHooks(Callback):
    """Calls a profiler around each hook of each receiver, with Lightning's names of actions.

    A hook is `[Callback]<state key>.<hook>`, `[LightningModule]<class>.<hook>` or
    `[LightningDataModule]<class>.<hook>`; a step is `[Strategy]<class>.training_step`, as a strategy calls it. Beside
    these there are "run_training_epoch", "run_training_batch" and `[Strategy]<class>.backward`, from the hook at their
    beginning to the one at their end. Pass it as the first callback, so that these are without the hooks of other
    callbacks.

    Args:
        strategy_name: The class of the strategy.
    """

    only_observes = True
    after_module = frozenset({"teardown", "on_train_epoch_start", "on_train_batch_start", "on_before_backward"})

    def __init__(self, profiler: ActionProfiler, strategy_name: str) -> None:
        self.profiler = profiler
        self._strategy_name = strategy_name
        self._open: list[str] = []

    def wrap_call(
        self, hook: str, kind: Receiver, receiver: object, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a measured version of a hook's function; called when a run resolves its hooks.

        Args:
            hook: The hook's name.
            kind: The kind of receiver.
            function: Its bound method.
        """
        if receiver is self:
            return function
        action, profiler = self._action(hook, kind, receiver), self.profiler

        @wraps(function)
        def profiled(*args: Any, **kwargs: Any) -> Any:
            with profiler.profile(action):
                return function(*args, **kwargs)

        return profiled

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Begin a stage of the profiler."""
        attach = getattr(self.profiler, "attach", None)
        if attach is not None:
            attach(trainer, module)
        strategy = trainer.strategy
        local_rank = strategy.local_rank if strategy.world_size > 1 else None
        self.profiler.setup(stage=stage, local_rank=local_rank, log_dir=trainer.log_dir)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Begin an epoch."""
        self._start("run_training_epoch")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a batch."""
        self._start("run_training_batch")

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Begin a backward pass."""
        self._start(f"[Strategy]{self._strategy_name}.backward")

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """End a backward pass."""
        self._stop(f"[Strategy]{self._strategy_name}.backward")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a batch."""
        self._stop("run_training_batch")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """End an epoch."""
        self._stop("run_training_epoch")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Stop all running actions."""
        while self._open:
            self._stop(self._open[-1])

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """End the stage with the profiler's report."""
        self.on_exception(trainer, module, KeyboardInterrupt())
        self.profiler.describe()

    def _action(self, hook: str, kind: Receiver, receiver: object) -> str:
        if kind == Receiver.CALLBACK:
            return f"[Callback]{getattr(receiver, 'state_key', type(receiver).__qualname__)}.{hook}"
        if hook in _STEPS:
            return f"[Strategy]{self._strategy_name}.{hook}"
        return f"[{_KINDS[kind]}]{type(receiver).__name__}.{hook}"

    def _start(self, action: str) -> None:
        self._stop(action)  # of a batch whose start hook skipped the rest of the epoch
        self._open.append(action)
        self.profiler.start(action)

    def _stop(self, action: str) -> None:
        if action in self._open:
            self._open.remove(action)
            self.profiler.stop(action)
