"""Log values from a module, and publish them to callbacks, progress bars and loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import Moment, Strategy
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import move_to_device
from camshaft.loops.metrics.entry import Asked, Entry, LogOptions
from camshaft.loops.metrics.epoch import EpochLog, LoggerSender, MetricWriter, Progress, Reader
from camshaft.loops.metrics.exchange import MetricExchange
from camshaft.loops.metrics.values import (
    MeasuredBatch,
    ReduceFx,
    Value,
    check_batch_size,
    is_metric,
    load_nested,
    log_error,
    save_nested,
    to_float_tensor,
    to_floats,
)
from camshaft.loops.optimization.weighted_loss import WeightedLoss

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_compiled(function: _Function) -> _Function:
    """Let `torch.compile` end its graph where a function is called, and run the function itself in eager mode.

    So does `torch.compiler.disable`, but that imports Dynamo, which takes a second, and wraps each call. This only
    marks the function's code: calls cost nothing.

    Returns:
        The function, marked.
    """
    marks = {"_torchdynamo_disable": True, "_torchdynamo_disable_msg": "it belongs to the trainer, not to the model"}
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):  # private to torch
        disable: Any = torch.compiler.disable
        return cast(_Function, disable(function))
    vars(function).update(marks)
    return function


class MetricLogging:
    """Adds `log` and `log_dict` to a module; `MetricLog.attach` connects them with a run's log.

    Example:
        >>> import torch
        >>> class Regression(MetricLogging, torch.nn.Linear):
        ...     def training_step(self, batch, batch_idx):
        ...         loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        ...         self.log("loss", loss, on_epoch=True)
        ...         return loss
        >>> module = Regression(2, 1)
        >>> loss = module.training_step((torch.ones(4, 2), torch.ones(4, 1)), 0)
        >>> list(module.logged_metrics)
        ['loss']
    """

    # Set in `__dict__`, past `nn.Module.__setattr__`, which would look for submodules.
    _metric_log: MetricLog | StandaloneLog | None = None

    @not_compiled
    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | Tensor | None = None,
        sync_dist: bool | None = None,
        add_dataloader_idx: bool = True,
        enable_graph: bool = False,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value: to the step, to the epoch, or both (as `<name>_step` and `<name>_epoch`).

        Tensors stay on their device; this never waits for it. `callback_metrics` of the run's log (and of a trainer)
        has the values. Without a run the last value is kept in `logged_metrics`.

        Args:
            name: Its name.
            value: A number, a tensor with one element, a `WeightedLoss`, whose weight counts in the epoch's mean, or a
                `torchmetrics.Metric`, which is reset when the epoch ends.
            prog_bar: Whether progress bars show it.
            logger: Whether loggers get it (None means true): of steps every `log_every_n_steps` updates, of epochs at
                their end.
            on_step: Whether to log it for the step; None means in hooks of a training batch only.
            on_epoch: Whether to reduce it over the epoch; None means everywhere but in hooks of a training batch.
            reduce_fx: "mean", "sum", "max", "min" (in any case), or a function of all values as a one-dimensional
                tensor, which are all kept for it. Leave it out for a metric.
            batch_size: Weight in the epoch's mean, a number or a tensor with one element; None takes dimension 0 of the
                first tensor in the batch.
            sync_dist: Reduction over processes. None reduces the epoch's value over all of them (a mean weighted by
                the sizes of all batches; a user's function gets the values of all), and leaves values of steps to each
                process: loggers get those of the first. True reduces values of steps as well, when they are sent to
                loggers (a mean then weighs all processes alike); log it at the same updates on all. False leaves the
                epoch's value to each process, too: callbacks that monitor it decide by the first one's. Until the
                epoch ends, readers get this process's own value.
            add_dataloader_idx: Whether "/dataloader_idx_<n>" is added to the name where there are several loaders.
            enable_graph: Whether the step's value, as callbacks and the module read it until the next one is logged,
                can be differentiated; its graph stays in memory until then. An epoch's value never can.
            metric_attribute: The name of the module's attribute, such as "metrics.accuracy", that the value, a metric,
                is: only checked, since metrics are found by themselves.
            rank_zero_only: Whether only the first process's call counts; its value is not reduced over processes,
                whatever `sync_dist` says.

        Raises:
            TypeError, ValueError: If the value cannot be logged, or the arguments contradict each other, the hook, or
                an earlier call for the name.
            RuntimeError: Where nothing can be logged, as in prediction.
            MetricMismatchError: When the epoch ends, on every process, if processes logged one name in different ways.
        """
        log = self._metric_log or self._log_alone()
        if isinstance(value, WeightedLoss):
            if batch_size is not None:
                rule, action = "left out for a WeightedLoss, which has a weight", "Leave it out."
                raise log_error(name, "batch_size", rule, batch_size, action)
            value, batch_size = value.loss, value.weight
        if rank_zero_only:
            if getattr(self, "global_rank", log.global_rank) != 0:
                return
            sync_dist = False
        if metric_attribute is not None:
            found: Any = self
            for part in metric_attribute.split("."):
                found = getattr(found, part, None)
            if found is not value:
                rule = "the name of the module's attribute that is the logged metric"
                raise log_error(name, "metric_attribute", rule, metric_attribute, "Correct it, or leave it out.")
        # a plain tuple: made and compared in a fraction of the time of an object with named fields
        asked = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)
        entry = log.record(name, value, asked, batch_size)
        if enable_graph:
            entry.keep_graph(value)

    @not_compiled
    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        batch_size: float | Tensor | None = None,
        sync_dist: bool | None = None,
        add_dataloader_idx: bool = True,
        enable_graph: bool = False,
        rank_zero_only: bool = False,
    ) -> None:
        """Log each value of a dictionary or `torchmetrics.MetricCollection`; see `log`."""
        items = dictionary.items()
        if is_metric(dictionary, "MetricCollection"):  # with its prefix, and without copying states that metrics share
            items = dictionary.items(keep_base=False, copy_state=False)  # type: ignore[call-arg]
        asked = prog_bar, logger, on_step, on_epoch, reduce_fx, batch_size, sync_dist, add_dataloader_idx, enable_graph
        for name, value in items:
            self.log(name, value, *asked, rank_zero_only=rank_zero_only)

    @property
    def logged_metrics(self) -> Mapping[str, Value]:
        """The last logged values by name, detached; without a run all of them, else those meant for loggers."""
        return (self._metric_log or self._log_alone()).logged_metrics

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which leave the log behind."""
        return {name: value for name, value in self.__dict__.items() if name != "_metric_log"}

    def _log_alone(self) -> StandaloneLog:
        log = self.__dict__["_metric_log"] = StandaloneLog()
        return log


class _CallbackMetrics(dict[str, Any]):
    """A copy of the logged values, which also sets in the log what is set in it."""

    def __init__(self, values: dict[str, Any], published: dict[str, Any]) -> None:
        super().__init__(values)
        self._published = published

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, *args: Any, **values: Any) -> None:
        super().update(*args, **values)
        self._published.update(*args, **values)

    def __ior__(self, values: Any) -> _CallbackMetrics:  # type: ignore[override, misc]
        self.update(values)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a plain dictionary for copies and pickles."""
        return dict, (dict(self),)


_NUM_STEP_ROWS = 64  # batches of an evaluation that are sent to loggers in one transfer


class MetricLog(MetricLogging):
    """The metric log of a run: pass it as `Run.metrics`; modules log to it, and loops tell it the run's position.

    A logged tensor stays on its device. Only sending to loggers and reading `progress_bar_metrics` wait for a device,
    in one transfer each. Memory does not grow with the number of steps, unless a user's function reduces an epoch, or
    values of evaluation batches are reduced over processes.

    With several processes, values of epochs are reduced over all of them when the epoch ends, unless `sync_dist` is
    false; until then they are this process's own. No other call waits for another process, except the sending of
    training steps that are logged with `sync_dist` true.

    Args:
        loggers: Loggers; pass the same number on every rank. Only those of the first are written to.
        log_every_n_steps: Interval in updates between values of training steps that are sent; 0 never sends them.
        progress: The position of training, such as `FitLoop.progress`.
        strategy: Connects the processes; None for a single one.
        saves_each_row: Whether loggers save after each row, rather than at the ends of epochs.

    Attributes:
        hook: The hook that runs; values of one name that are logged in two hooks are two results.
        batch: The current batch. The log puts a `MeasuredBatch` in its place when something is logged for it.
        takes_options: Whether later calls for a name may have other options, which count from there on; from the next
            epoch on.

    Raises:
        ValueError: If `log_every_n_steps` is negative.
    """

    def __init__(
        self,
        *,
        progress: Progress,
        loggers: Sequence[MetricWriter] = (),
        log_every_n_steps: int = 50,
        strategy: Strategy | None = None,
        saves_each_row: bool = False,
    ) -> None:
        if log_every_n_steps < 0:
            action = "Pass 0 to send only the values of epochs."
            raise ValueError(must_be("log_every_n_steps", "0 or more", log_every_n_steps, "MetricLog", action))
        self.hook: str | None = None
        self.batch: Any = None
        self.takes_options = False
        self._moment: Moment | None = None
        self._dataloader_idx = 0
        self._strategy = strategy
        self._sender = LoggerSender(loggers, log_every_n_steps, progress, strategy, saves_each_row)
        self._exchange: MetricExchange | None = None
        self._epochs: dict[str, EpochLog] = {}  # of stages whose epoch has begun and not ended
        self._num_eval_steps: dict[str, dict[int, int]] = {}
        self._published: dict[Reader, dict[str, Any]]  # latest values of epochs that have ended
        self._entries: dict[str, Entry]  # of the current epoch, by name alone: those of the latest calls
        self.clear()

    @property
    def _metric_log(self) -> MetricLog:  # type: ignore[override]
        return self  # so that `log` and `log_dict` may be called on it, too

    # reading

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Every value of training steps and epochs by name, the running epoch's included at its end.

        Values that were logged as numbers, as integers or in half precision are tensors of torch's default type; sums
        and means of an epoch were computed in double precision. What a callback sets in it stays, until the module logs
        that name or another run begins.
        """
        values = {name: to_float_tensor(value) for name, value in self._read("to_callbacks").items()}
        return _CallbackMetrics(values, self._published["to_callbacks"])

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The latest values that loggers get, by the names that they get; types as in `callback_metrics`."""
        return {name: to_float_tensor(value) for name, value in self._read("to_loggers").items()}

    @property
    def progress_bar_metrics(self) -> dict[str, float | int | str]:
        """The latest values that progress bars show, as numbers. Waits for the device."""
        return dict(to_floats(self._read("to_progress_bars")))

    def published(self) -> dict[Reader, dict[str, Value]]:
        """Return the latest values by reader, on the CPU: what a log of another process takes by `publish`."""
        readers: tuple[Reader, ...] = ("to_callbacks", "to_loggers", "to_progress_bars")
        return {reader: move_to_device(self._read(reader), torch.device("cpu")) for reader in readers}

    def publish(self, values: dict[Reader, dict[str, Value]]) -> None:
        """Show the values of another log, until the next run."""
        self._published = values

    def _read(self, reader: Reader) -> dict[str, Value]:
        metrics = dict(self._published[reader])
        for epoch in self._epochs.values():
            is_at_end = epoch is self._current and self._moment != "batch"
            values = epoch.values() if is_at_end else epoch.live(with_epoch=False)
            metrics = epoch.merge(reader, values, metrics)
        return metrics

    # logging

    # A change of these two clears `_entries`, so that calls need not compare them.

    @property
    def moment(self) -> Moment | None:
        """The moment that a value logged now belongs to, None where nothing can be logged; see `MetricSink`."""
        return self._moment

    @moment.setter
    def moment(self, moment: Moment | None) -> None:
        self._moment = moment
        self._entries.clear()

    @property
    def dataloader_idx(self) -> int:
        """Index of the current loader."""
        return self._dataloader_idx

    @dataloader_idx.setter
    def dataloader_idx(self, dataloader_idx: int) -> None:
        if dataloader_idx != self._dataloader_idx:
            self._dataloader_idx = dataloader_idx
            self._entries.clear()

    @property
    def global_rank(self) -> int:
        """Index of this process among all."""
        return 0 if self._strategy is None else int(self._strategy.global_rank)

    def record(self, name: str, value: Any, asked: Asked, batch_size: float | Tensor | None) -> Entry:
        """Record a value and return its entry; the arguments are those of `log`, `asked` has the other ones."""
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked or entry.hook != self.hook:
            entry = self._current.entry_for(name, value, asked, self._moment, self.hook, self._dataloader_idx)
        kept = entry.keep(value)
        entry.step_value = kept
        if kept is None:
            return entry
        if entry.reduction is not None:
            if batch_size is not None:
                weight = check_batch_size(name, batch_size)
            elif entry.needs_weight:
                batch = self.batch
                weight = (type(batch) is MeasuredBatch and batch.size) or self._measured_batch().measure()
            else:
                weight = 1
            entry.reduction.add(kept, weight)
        if entry.sends_steps:
            self._measured_batch()
            self._current.add_step_value(entry, kept, self._dataloader_idx)
        return entry

    def log_returned(self, values: Mapping[str, Any], *, logger: bool, prog_bar: bool) -> None:
        """Log what a step or an epoch's end returned; see `MetricSink` and `EpochLog.readers_of_returned`.

        In the mean over an epoch of evaluation each batch counts as much as any other.
        """
        for name, value in values.items():
            readers = self._current.readers_of_returned(name, self.moment, logger=logger, prog_bar=prog_bar)
            if readers is not None:
                self.log(name, value, logger=readers[0], prog_bar=readers[1], batch_size=1)

    def _measured_batch(self) -> MeasuredBatch:
        batch = self.batch
        if type(batch) is not MeasuredBatch:
            batch = self.batch = MeasuredBatch(batch)
            self._current.begin_step(self._dataloader_idx)
            if len(self._current.step_rows) >= _NUM_STEP_ROWS:
                self._sender.send_rows(self._current.take_step_rows())
        return batch

    # settings

    def attach(self, module: nn.Module) -> None:
        """Let a module, and every `MetricLogging` in it, log here; forgets everything, as before a run."""
        for part in module.modules():
            if isinstance(part, MetricLogging):
                part.__dict__["_metric_log"] = self
        self.clear(module)

    def clear(self, module: nn.Module | None = None) -> None:
        """Forget everything, also what was published and epochs that were cut off.

        Args:
            module: The module that will log; a process that has no batch for a metric of it finds it there.
        """
        for epoch in self._epochs.values():
            epoch.reset()
        self._epochs.clear()
        self._num_eval_steps.clear()
        self._published = {"to_callbacks": {}, "to_loggers": {}, "to_progress_bars": {}}
        strategy = self._strategy
        if strategy is not None and strategy.world_size > 1:
            self._exchange = MetricExchange(strategy, module)
        self._go_to(EpochLog(), None)

    def write_to(self, loggers: Sequence[MetricWriter]) -> None:
        """Write to other loggers from now on; values of evaluation batches from the next evaluation on."""
        self._sender.loggers = loggers
        self.send_every(self._sender.every_n_steps)

    def send_every(self, num_steps: int) -> None:
        """Send values of training steps after every so many updates from now on; 0 never sends them."""
        self._sender.every_n_steps = num_steps
        if "train" in self._epochs:
            self._sender.schedule()

    # calls of the loops; see `MetricSink`

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        """Forget the stage's earlier values and collect for its new epoch; the moment becomes "epoch".

        Nothing of a trial is sent to loggers.

        Args:
            num_dataloaders: How many loaders its epoch reads.
            is_trial: Whether its values are discarded in the end.
        """
        unfinished = self._epochs.get(stage)
        if unfinished is not None:
            unfinished.reset()
        self._epochs[stage] = EpochLog(
            stage,
            num_dataloaders,
            sends_steps=stage != "train" and bool(self._sender.loggers) and not is_trial,
            is_shared=self._exchange is not None,
            num_steps=dict(self._num_eval_steps.get(stage, ())),
            takes_options=self.takes_options,
        )
        if stage == "train":
            self._sender.schedule()
        self.enter(stage, "epoch")

    def enter(self, stage: str, moment: Moment | None) -> None:
        """Continue collecting for a stage, after another one ran within it.

        Args:
            moment: What a value logged from now on belongs to by default.

        Raises:
            RuntimeError: If no epoch of the stage has begun.
        """
        if stage not in self._epochs:
            rule = f"one whose epoch has begun ({', '.join(self._epochs) or 'none'})"
            raise RuntimeError(must_be("stage", rule, stage, "MetricLog.enter", "Call `start_epoch` first."))
        self._go_to(self._epochs[stage], moment)

    def end_train_batch(self, is_update: bool) -> None:
        """Send what training steps logged, if that is due; `is_update`: whether the batch or split has updated."""
        sender = self._sender
        if is_update and sender.step >= sender.next_send:
            sender.schedule()
            taken = self._epochs["train"].take_step_values()
            values = {entry.step_name: value for entry, value in taken}
            if self._exchange is not None:
                values |= self._exchange.reduce_step([each for each in taken if each[0].options.sync_dist is True])
            sender.send(values, in_training=True)

    def reduce_epoch(self) -> None:
        """Reduce the values of the stage's epoch over all processes before it ends, for readers. Collective.

        Raises:
            MetricMismatchError: On every process, if they logged one name in different ways.
        """
        if self._exchange is not None and self._current.stage:
            self._current.reduced = self._exchange.reduce_epoch(self._current)

    def end_epoch(self) -> list[dict[str, float]]:
        """Reduce and publish the values of the stage's epoch. Collective. Returns them per loader, as numbers.

        Raises:
            MetricMismatchError: As `reduce_epoch`.
        """
        epoch, sender = self._current, self._sender
        sender.send_rows(epoch.take_step_rows())
        if sender.writes:
            epoch.warn_of_lost_values()
        self.reduce_epoch()
        sender.send_rows(epoch.held_rows)
        values = epoch.values()
        numbers = to_floats({idx: each.value for idx, each in enumerate(values)})
        numeric = [each._replace(value=numbers[idx]) for idx, each in enumerate(values)]
        for reader, published in self._published.items():
            merged = epoch.merge(reader, numeric if reader == "to_progress_bars" else values, published)
            published.clear()
            published |= merged
        if epoch.stage != "train" and "train" in self._epochs:
            self._epochs["train"].supersede(values)
        of_epoch = [each for each in numeric if each.of_epoch and each.entry.options.logger]
        sender.send({each.name: each.value for each in of_epoch}, in_training="train" in self._epochs)
        if of_epoch and not sender.saves_each_row:
            sender.save()
        self._num_eval_steps[epoch.stage] = epoch.num_steps
        self.discard()
        return [
            {each.name: float(each.value) for each in of_epoch if each.entry.dataloader_idx in (None, dataloader_idx)}
            for dataloader_idx in range(epoch.num_dataloaders)
        ]

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""
        self._current.reset()
        self._epochs.pop(self._current.stage, None)
        self._go_to(EpochLog(), None)  # nothing can be logged there

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Collect for a training epoch that is forgotten afterwards; everything else is then as it was before."""
        before, next_send = dict(vars(self)), self._sender.next_send
        self._epochs = {}
        self.start_epoch("train", is_trial=True)
        self.moment = "batch"
        try:
            yield
        finally:
            self.discard()
            vars(self).update(before)
            self._sender.next_send = next_send

    def _go_to(self, epoch: EpochLog, moment: Moment | None) -> None:
        self._current = epoch
        self._entries = epoch.latest
        self.moment = moment
        self.batch = None
        self._dataloader_idx = 0

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what was published, and the training epoch that runs: copies of tensors and plain values only.

        It changes nothing, and neither waits for a device nor reads values. Taken between two batches or between two
        epochs, as loops do; of a stop within an epoch, before the hooks of its end log or read anything.
        """
        train = self._epochs.get("train")
        state = {"published": self._published, "num_eval_steps": self._num_eval_steps, **self._sender.state_dict()}
        state["train"] = None if train is None else train.state_dict()
        return cast("dict[str, Any]", save_nested(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as if the run from which the state was taken had not stopped, after `start_epoch("train")`.

        What the training epoch has logged since its start is forgotten. A checkpoint cannot hold a metric or a user's
        function as `reduce_fx`: until their name is logged again, values of the epoch that are read lack them. A
        metric's own state is not in here. If `log_every_n_steps` has changed, the new one holds at once.

        Raises:
            RuntimeError: If the state holds a training epoch's values and no training epoch has begun.
        """
        state, train = load_nested(state), self._epochs.get("train")
        saved = state["train"]
        if train is None and saved is not None:
            rule, got = 'called after `start_epoch("train")`', self._current.stage or None
            raise RuntimeError(must_be("load_state_dict", rule, got, "MetricLog", "Start the epoch first."))
        self._published, self._num_eval_steps = state["published"], state["num_eval_steps"]
        if train is not None:
            train.load_state_dict(saved or {"entries": [], "num_steps": self._num_eval_steps.get("train", {})})
        if saved is not None:
            self._sender.load_state_dict(state)


class StandaloneLog(MetricLogging):
    """Keeps the last value of each name of a module without a run; checks calls as `MetricLog` does.

    Args:
        warning: What the first value warns of.
    """

    global_rank = 0

    def __init__(self, warning: str = "") -> None:
        self._entries: dict[str, Entry] = {}
        self._warning = warning

    @property
    def _metric_log(self) -> StandaloneLog:  # type: ignore[override]
        return self

    @property
    def logged_metrics(self) -> dict[str, Value]:
        """The last values, as detached tensors where tensors were logged, else numbers.

        Of a metric, its value of the last batch, or what it computes if it was only updated.
        """
        return {name: value for name, entry in self._entries.items() if (value := entry.last_value) is not None}

    def record(self, name: str, value: Any, asked: Asked, batch_size: float | Tensor | None) -> Entry:
        """Keep a value that `log` was called with, and return its entry; see `MetricLog.record`."""
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked:
            if self._warning and not self._entries:
                warn_user(self._warning)
            entry = self._entries[name] = Entry(name, LogOptions.resolve(name, asked))
            entry.asked = asked
        if batch_size is not None:
            check_batch_size(name, batch_size)
        if is_metric(value):
            of_batch = getattr(value, "_forward_cache", None)
            value = value.compute() if of_batch is None else of_batch
        entry.step_value = entry.keep(value)
        return entry


class EpochEndReduction(Callback):
    """Reduces the values of a training epoch over all processes before callbacks that monitor them run.

    Pass it as the first of the callbacks where there are several processes. The values include what the module logs in
    `on_train_epoch_end`.
    """

    monitors: ClassVar[bool] = True

    def __init__(self, metric_log: MetricLog) -> None:
        self._metric_log = metric_log

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Reduce them. Collective."""
        self._metric_log.reduce_epoch()
