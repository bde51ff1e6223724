"""The run: one verb on one module, shared by all of its loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import attrs

from camshaft.hooks_core import CATALOGUE, Callback, Catalogue, Hooks, no_op, resolve
from camshaft.hooks_core.dispatch.implementation import implementation
from camshaft.hooks_core.support.messages import must_be, note_errors
from camshaft.loops.state.callback_state import check_state_keys

if TYPE_CHECKING:
    from torch import nn

    from camshaft.hooks_core.dispatch.readings import ReadReceivers
    from camshaft.hooks_core.protocols import MetricSink, PendingSave, Strategy
    from camshaft.hooks_core.spec import Verb
    from camshaft.loops.state.logical_ranks import LogicalRanks


SaveOnly = Literal["trainable"] | Callable[[str], bool]
"""Choice of the parameters that checkpoints hold."""

LOADER_HOOKS = {
    "train": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
"""Hooks that provide the loaders of a stage if none were passed."""


@attrs.frozen
class SaveRequest:
    """A request for a checkpoint, to be written at the next save point.

    Args:
        path: Where to.
        weights_only: Whether to save nothing but weights and hyperparameters.
        on_saved: Called once the checkpoint is durable.
    """

    path: str
    weights_only: bool = False
    on_saved: Callable[[], None] | None = None


@attrs.frozen
class FitOrder:
    """Departures of a fit from the usual order of its hooks.

    Attributes:
        train_start_first: Whether `on_train_start` comes before the sanity check.
        epoch_end_first: Whether the hooks of a training epoch's end come before the validation at its end.
    """

    train_start_first: bool = False
    epoch_end_first: bool = False


_EXCLUDED_FROM_COPIES = {
    *("checkpoint", "checkpoint_adapter", "read", "call_wrappers", "adapters", "epoch_state", "stop_workers"),
    *("optimization_factory", "hooks", "save_requests", "batch_functions", "on_preempt", "_attached", "_saving"),
}
"""Attributes that copies and pickles of a run lack: hooks and their adapters, and pending work."""


class EpochState(Protocol):
    """State that a training epoch fills from batch to batch, such as the outputs of its steps."""

    def reset(self) -> None:
        """Forget everything: an epoch begins, or is complete."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state inside an epoch, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on inside an epoch; `state` is None if the checkpoint has none."""


class OptimizationFactory(Protocol):
    """Makes the optimizers and the update mode of a fit, as `camshaft.loops.StandardOptimizationFactory` does."""

    def configure(self, run: Run) -> Any:
        """Return the `ConfiguredOptimizers` of the module, before the strategy sets them up."""

    def make_mode(self, run: Run, configured: Any, progress: Any, limits: Any, settings: Any) -> Any:
        """Return the `UpdateMode` of the fit; see `StandardOptimizationFactory.make_mode`."""


class CheckpointAdapter:
    """Adapts a checkpoint to a run, step by step as the parts of the run are made; this one changes nothing.

    Override methods for another format, and pass an instance as `Run.checkpoint_adapter`.
    """

    def weights(self, saved: Mapping[str, Any], module: nn.Module) -> Mapping[str, Any]:
        """Return the weights under their names in the module.

        Args:
            saved: The weights under the names in the checkpoint.
            module: The module.
        """
        return saved

    def data_state(self, checkpoint: dict[str, Any], data: object) -> dict[str, Any] | None:
        """Return the state of the data module; None if the checkpoint has none.

        Args:
            checkpoint: The checkpoint.
            data: The data module.
        """
        return checkpoint.get("data")

    def callback_states(self, checkpoint: dict[str, Any], run: Run) -> dict[str, dict[str, Any]]:
        """Return the states of the run's callbacks by their keys.

        Args:
            checkpoint: The checkpoint.
            run: The run.
        """
        return checkpoint.get("callbacks", {})  # type: ignore[no-any-return]

    def training(self, checkpoint: dict[str, Any], run: Run) -> dict[str, Any]:
        """Restore progress and random numbers; return the checkpoint with states that replace its own.

        Args:
            checkpoint: The checkpoint.
            run: The run.
        """
        return checkpoint

    def finish(self, run: Run) -> None:
        """Finish, once optimizers and schedulers are restored."""


@attrs.define(eq=False, repr=False, kw_only=True)
class Run:
    """One verb on one module: its receivers, its resolved hooks, and its position.

    Args:
        verb: The verb that runs.
        module: The model.
        strategy: The strategy that it computes on.
        trainer: The first argument of callbacks.
        callbacks: The callbacks in the order in which they run.
        data: The data module, if any.
        loaders: Loaders that were passed by stage ("train", "validate", "test", "predict"); a stage without any asks
            the hooks.
        metrics: Collects what the module logs; None collects nothing.
        checkpoint: A checkpoint to start from.
        ckpt_path: Path that `checkpoint` was read from, for errors.
        checkpoint_adapter: Translates the states of a checkpoint of another format.
        write_checkpoint: Carries out one request to save. It may return a `PendingSave`, which waits for its end.
        strict_hooks: Whether faults in receivers' hooks are errors.
        catalogue: The hooks that there are.
        save_only: What checkpoints hold of the module's parameters: "trainable" for those that require gradients or
            that an optimizer holds, or a function that is true of the names to keep. None keeps all. Buffers are always
            kept.
        epoch: The epoch of training, which samplers are told; fit sets it.
        read: Reads the signatures of receivers that were written for another protocol; None takes them as today's. See
            `camshaft.hooks_core.resolve`.
        call_wrappers: Objects with a method `wrap_call`, as callbacks may have it; they wrap the calls of all
            receivers, and the callbacks wrap those.
        adapters: Called in order with the run, right after its hooks are resolved and before any is called. An adapter
            may wrap hooks (`run.hooks.wrap`) and set the attributes that follow.
        order: Departures of a fit from the usual order of its hooks.
        restores_weights: Whether the weights of `checkpoint` are loaded into the module; false where something else
            does so.
        epoch_state: State for a checkpoint that is taken inside a training epoch, by its key there.
        optimization_factory: Makes optimizers, and updates of batches, of what the module configures; None makes what
            `camshaft.loops.StandardOptimizationFactory` does.
        is_connected: Whether `strategy.connect()` was called for this run; otherwise `run_verb` calls it.

    Attributes:
        num_loaders: Number of loaders of the current or last evaluation.
        takes_callbacks: Whether callbacks that are added now are called: until `setup` is over.
        predictions: The predictions of this process so far, a list for each loader that gave any.
        logical: The logical ranks that this process plays, from the verb's beginning on; None without.
    """

    verb: Verb
    module: nn.Module
    strategy: Strategy
    trainer: Any
    callbacks: list[Any] = attrs.field(factory=list)
    data: object | None = None
    loaders: Mapping[str, Any] = attrs.field(factory=dict)
    metrics: MetricSink | None = None
    checkpoint: dict[str, Any] | None = None
    ckpt_path: object = None
    checkpoint_adapter: CheckpointAdapter = attrs.field(factory=CheckpointAdapter)
    write_checkpoint: Callable[[SaveRequest], PendingSave | None] | None = None
    strict_hooks: bool = True
    catalogue: Catalogue = CATALOGUE
    save_only: SaveOnly | None = None
    epoch: int = 0
    read: ReadReceivers | None = None
    call_wrappers: list[object] = attrs.field(factory=list)
    adapters: list[Callable[[Run], None]] = attrs.field(factory=list)
    order: FitOrder = attrs.field(factory=FitOrder)
    restores_weights: bool = True
    epoch_state: dict[str, EpochState] = attrs.field(factory=dict)
    optimization_factory: OptimizationFactory | None = None
    is_connected: bool = False

    num_loaders: int = attrs.field(default=0, init=False)
    predictions: list[list[Any]] = attrs.field(factory=list, init=False)
    logical: LogicalRanks | None = attrs.field(default=None, init=False)
    hooks: Hooks = attrs.field(init=False)
    takes_callbacks: bool = attrs.field(default=True, init=False)
    _bound: list[Any] = attrs.field(factory=list, init=False)  # the callbacks whose hooks are resolved
    stage: str | None = attrs.field(default=None, init=False)
    batch_idx: int | None = attrs.field(default=None, init=False)
    save_requests: list[SaveRequest | Callable[[], None]] = attrs.field(factory=list, init=False)
    batch_functions: list[Callable[[], None]] = attrs.field(factory=list, init=False)  # see `after_batch`
    defers_saves: bool = attrs.field(default=True, init=False)  # true during set-up, which cannot be saved yet
    preempt_path: str | None = attrs.field(default=None, init=False)
    on_preempt: Callable[[str], None] | None = attrs.field(default=None, init=False)  # set while training listens
    _attached: list[tuple[Callback, Any]] = attrs.field(factory=list, init=False)
    stop_workers: Callable[[], None] = attrs.field(default=no_op, init=False)  # of the loaders, after an error
    _saving: tuple[PendingSave, SaveRequest] | None = attrs.field(default=None, init=False)
    _writes_at_once: bool = attrs.field(default=False, init=False)

    def resolve_hooks(self, required: tuple[str, ...]) -> None:
        """Let the module add its callbacks, resolve every hook, and call the adapters.

        Callbacks of the module replace those of the same type. Hooks: configure_callbacks.

        Args:
            required: Names of the steps without which the verb makes no sense.

        Raises:
            HookFaultError: If a receiver's hooks are faulty or a required step is missing.
            ValueError: If two callbacks would keep their state under one key.
            Exception: Whatever an adapter raises.
        """
        configure = implementation(self.module, "configure_callbacks")
        if configure is not None:
            with note_errors(self.module, "configure_callbacks", self.position):
                added = configure()
            added = list(added) if isinstance(added, Sequence) else [] if added is None else [added]
            types = {type(callback) for callback in added}
            self.callbacks[:] = [one for one in self.callbacks if type(one) not in types] + added
        self._bind(required)

    def follow_callbacks(self, required: tuple[str, ...]) -> None:
        """Resolve the hooks again if `setup` has added callbacks or removed some; see `resolve_hooks`."""
        if self.callbacks != self._bound:
            self.release_callbacks()
            self._bind(required)
        self.takes_callbacks = False

    def check_callbacks(self) -> None:
        """Raise `RuntimeError` if callbacks were added or removed since `setup`, whose hooks are not followed."""
        if self.callbacks != self._bound:
            rule, action = "the same from the end of `setup` on", "Change them in `setup` or before."
            changed = [one for one in self.callbacks if one not in self._bound] or self.callbacks
            raise RuntimeError(must_be("callbacks", rule, changed, self.position(), action))

    def _bind(self, required: tuple[str, ...]) -> None:
        check_state_keys(self.callbacks, self.verb)
        self._bound = list(self.callbacks)
        self.hooks = resolve(
            callbacks=[*self.call_wrappers, *self.callbacks],
            data=self.data,
            module=self.module,
            strategy=self.strategy,
            trainer=self.trainer,
            required=required,
            position=self.position,
            catalogue=self.catalogue,
            strict=self.strict_hooks,
            read=self.read,
            uncalled=[hook for stage, hook in LOADER_HOOKS.items() if self.loaders.get(stage) is not None],
            place=cast(Any, self.metrics) if hasattr(self.metrics, "hook") else None,
        )
        for callback in self.callbacks:
            if isinstance(callback, Callback):  # it logs with this run's module
                self._attached.append((callback, callback._logging_module))
                vars(callback)["_logging_module"] = self.module
        for adapt in self.adapters:
            adapt(self)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude run state from copies and pickles."""
        names = [field.name for field in attrs.fields(Run) if field.name not in _EXCLUDED_FROM_COPIES]
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        for field in attrs.fields(Run):
            default: Any = field.default
            if field.name in _EXCLUDED_FROM_COPIES and default is not attrs.NOTHING:
                setattr(self, field.name, default.factory() if hasattr(default, "factory") else default)

    @property
    def has_hooks(self) -> bool:
        """True once the hooks are resolved; false for a copy, which may have them resolved again."""
        return hasattr(self, "hooks")

    def release_callbacks(self) -> None:
        """Let callbacks log with the module that they logged with before this run, if there was one."""
        while self._attached:
            callback, before = self._attached.pop()
            vars(callback)["_logging_module"] = before

    def place(self) -> str:
        """Return the position of the run. Any thread may call it."""
        stage, batch_idx = self.stage, self.batch_idx
        batch = "" if batch_idx is None else f", batch {batch_idx}"
        return f"{self.verb}, {'' if stage is None else f'stage {stage}, '}epoch {self.epoch}{batch}"

    def position(self) -> str:
        """Return the position of the run, for the notes of errors."""
        return f"{self.place()}, rank {self.strategy.global_rank}"

    def request_save(self, request: SaveRequest) -> None:
        """Request a checkpoint: written at the next save point while a verb is set up or trains, else at once."""
        if self._writes_at_once:
            self._write(request)
            return
        self.at_save_point(request)

    def at_save_point(self, function: Callable[[], None] | SaveRequest) -> None:
        """Call a function at the next save point, in its turn among the checkpoints that were asked for.

        A checkpoint that the function requests by `request_save` is written before `request_save` returns. Outside of
        training the function is called at once. All processes must ask alike.
        """
        self.save_requests.append(function)
        if not self.defers_saves:
            self.save_point()

    def after_batch(self, function: Callable[[], None]) -> None:
        """Call a function when the training batch and the validation that it triggers are over.

        A checkpoint that the function asks for is written at the batch's save point. Without a batch that runs the
        function is called at once. All processes must ask alike.
        """
        if self.batch_idx is None or not self.defers_saves:
            function()
        else:
            self.batch_functions.append(function)

    def end_batch(self) -> None:
        """Call the functions that waited for the end of the batch."""
        while self.batch_functions:
            self.batch_functions.pop(0)()

    def preempt(self, path: str) -> None:
        """Ask for a checkpoint and an end of training as soon as no step is half done, whatever minimum there is.

        Any one process may ask, at any time, as in a signal handler; all of them follow, at their next agreement. A
        validation that is due by then runs first, and no other. Training that has not begun ends where it would begin;
        if it is over, nothing happens.

        Args:
            path: The checkpoint's file.
        """
        self.preempt_path = path
        if self.on_preempt is not None:
            self.on_preempt(path)

    def save_point(self) -> None:
        """Write the checkpoints that were asked for; the fit loop calls it where no step is half done. Collective.

        One that is written while training goes on is finished when the next one comes, or at the end of the verb.

        Raises:
            Exception: Whatever the writing of the one before raised.
        """
        while self.save_requests:
            request = self.save_requests.pop(0)
            if isinstance(request, SaveRequest):
                self._write(request)
                continue
            self._writes_at_once = True
            try:
                request()
            finally:
                self._writes_at_once = False

    def finish_saving(self) -> None:
        """Wait until the checkpoint is durable that is still being written, if there is one. Collective."""
        if self._saving is None:
            return
        (pending, request), self._saving = self._saving, None
        pending.wait()
        if request.on_saved is not None:
            request.on_saved()

    def save_at_once(self) -> None:
        """Write the waiting checkpoints, and from here on each one when it is requested. Collective."""
        self.defers_saves = False
        self.save_point()

    def forget_saves(self) -> None:
        """Drop the checkpoints that wait, since no save point comes after an error."""
        self.save_requests.clear()
        self.batch_functions.clear()
        self.defers_saves = False
        self._saving = None  # it is written to its end, but not announced: other processes may be gone

    def _write(self, request: SaveRequest) -> None:
        self.finish_saving()
        if self.write_checkpoint is None:
            rule, action = f"set to save {request.path!r}", "Pass a function that writes checkpoints."
            raise RuntimeError(must_be("write_checkpoint", rule, None, "Run", action))
        at_once, self._writes_at_once = self._writes_at_once, False  # what hooks ask for meanwhile comes afterwards
        try:
            pending = self.write_checkpoint(request)
        finally:
            self._writes_at_once = at_once
        if pending is not None:
            self._saving = (pending, request)
        elif request.on_saved is not None:
            request.on_saved()
