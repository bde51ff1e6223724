"""Collects what a module logs, and publishes it to callbacks, progress bars and loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Logger, Moment, Strategy
from camshaft.loops.metrics.entry import Entry, ReduceFx, resolve_options
from camshaft.loops.metrics.exchange import MetricExchange
from camshaft.loops.metrics.reductions import load_tensor, save_tensor
from camshaft.loops.metrics.sending import LoggerRows, Progress, StepSending
from camshaft.loops.metrics.stage_log import LiveValue, StageLog, for_callbacks, for_loggers, options_beside
from camshaft.loops.metrics.values import SeenBatch, check_batch_size, to_floats


class MetricView:
    """The properties of a metric log that callbacks, progress bars and users read."""

    _moment: Moment | None
    _current: StageLog
    _stages: dict[str, StageLog]
    _published: Published

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Every value by name: of training steps, and of epochs, the running one's included at its end."""
        metrics = dict(self._published.to_callbacks)
        for stage in self._stages.values():
            metrics |= for_callbacks(self._live(stage), stage)
        return metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The latest values that are meant for loggers, by the names that loggers get."""
        metrics = dict(self._published.to_loggers)
        for stage in self._stages.values():
            metrics |= for_loggers(self._live(stage))
        return metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float | int | str]:
        """The latest values that are meant for progress bars, as numbers. Waits for the device."""
        live = [
            live
            for stage in self._stages.values()
            for live in self._live(stage)
            if live.entry.options.prog_bar and live.stands_for(live.name)
        ]
        numbers = to_floats([shown.value for shown in live])
        return self._published.to_progress_bars | {
            shown.name: number for shown, number in zip(live, numbers, strict=True)
        }

    def _live(self, stage: StageLog) -> list[LiveValue]:
        if stage is not self._current or self._moment == "batch":
            return stage.live(with_epoch=False)
        return stage.live(with_epoch=True) if stage.reduced is None else stage.reduced


_NUM_STEP_ROWS = 64  # batches of an evaluation that are sent to loggers in one transfer


class MetricLog(MetricView):
    """The metric log of a run: what `TrainingModule.log` writes to and what loops tell where the run is.

    A logged tensor stays on its device. Nothing here waits for a device, except what sends values to loggers and what
    reads `progress_bar_metrics`; both take one transfer. Memory does not grow with the number of steps, unless a
    function of one's own reduces an epoch, or values of evaluation batches are reduced over processes.

    With several processes, values of epochs are reduced over all of them when the epoch ends, unless `sync_dist` is
    false; what is read before is this process's own. No other call waits for another process, except the sending of
    training steps that are logged with `sync_dist` true.

    Args:
        loggers: Where values are written; on processes that do not write, as many as there, which are left alone.
        log_every_n_steps: Values of training steps are sent after every so many updates; 0 never sends them.
        progress: Where training is.
        strategy: By which processes tell each other what they logged; None for a single process.

    Attributes:
        hook: The hook that runs; values of one name that are logged in two hooks are two results.
        batch: The batch that is worked on. The log puts a `SeenBatch` in its place when something is logged for it.

    Raises:
        ValueError: If `log_every_n_steps` is negative.
    """

    def __init__(
        self, *, loggers: Sequence[Logger], log_every_n_steps: int, progress: Progress, strategy: Strategy | None = None
    ) -> None:
        if log_every_n_steps < 0:
            action = "Pass 0 to send only the values of epochs."
            raise ValueError(must_be("log_every_n_steps", "0 or more", log_every_n_steps, "MetricLog", action))
        self.hook: str | None = None
        self.batch: Any = None
        self._moment: Moment | None = None
        self._dataloader_idx = 0
        self._rows = LoggerRows(loggers, progress, strategy)
        self._progress = progress
        self._steps = StepSending(self._rows, log_every_n_steps, progress)
        self._strategy = strategy
        self._exchange: MetricExchange | None = None
        self._stages: dict[str, StageLog] = {}  # those whose epoch has begun and not ended
        self._num_eval_steps: dict[str, dict[int, int]] = {}
        self._published = Published()
        self._entries: dict[str, Entry]  # of the current stage, by name alone: those of the loader that logged last
        self.clear()

    # A change of these two makes the next call for each name look at its arguments anew, so that others need not.

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
        """Index of the loader that is worked on."""
        return self._dataloader_idx

    @dataloader_idx.setter
    def dataloader_idx(self, dataloader_idx: int) -> None:
        if dataloader_idx != self._dataloader_idx:
            self._dataloader_idx = dataloader_idx
            self._entries.clear()

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
    ) -> None:
        """Log a value; see `TrainingModule.log`. Does not wait for the value's device."""
        asked = (self.hook, prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx)
        entry = self._entries.get(name)
        if entry is None or entry.asked != asked:
            entry = self._prepare_entry(name, value, asked)
        kept = entry.keep(value)
        entry.step_value = kept
        if kept is None:
            return
        if entry.reduction is not None:
            if batch_size is not None:
                weight = check_batch_size(name, batch_size)
            elif entry.needs_weight:
                seen = self.batch
                weight = (type(seen) is SeenBatch and seen.size) or self._see_batch().measure()
            else:
                weight = 1
            entry.reduction.add(kept, weight)
        if entry.sends_steps:
            self._see_batch()
            self._current.add_step_value(entry, kept, self._dataloader_idx)

    def log_returned(self, values: Mapping[str, Any], *, logger: bool, prog_bar: bool) -> None:
        """Log what a step or an epoch's end returned, by `log`; see `MetricSink` and `options_beside`.

        In the mean over an epoch of evaluation each batch counts as much as any other.
        """
        for name, value in values.items():
            options = options_beside(self._current, name, self.moment, logger=logger, prog_bar=prog_bar)
            if options is not None:
                self.log(name, value, batch_size=1, **options)

    def keep_graph(self, name: str, value: object) -> None:
        """Let the step's value that was just logged be differentiated; see `Entry.keep_graph`."""
        self._entries[name].keep_graph(value)

    def _prepare_entry(self, name: str, value: Any, asked: tuple[Any, ...]) -> Entry:
        """The entry of a name, for a call whose arguments are not those of the call before."""
        hook, prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx = asked
        stage, moment = self._current, self._moment
        dataloader_idx = self._dataloader_idx if moment == "batch" else None
        known = stage.known(name, dataloader_idx, hook)
        if known is not None and known.asked == asked and known.moment == moment:
            self._entries[name] = known  # another hook, or another loader, has logged it since
            return known
        options = resolve_options(
            name,
            stage.stage,
            moment if stage.stage else None,
            hook,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
        )
        entry = stage.entry(name, value, options, dataloader_idx, hook)
        entry.prepare(asked, options, moment)
        self._entries[name] = entry
        return entry

    def _see_batch(self) -> SeenBatch:
        seen = self.batch
        if type(seen) is not SeenBatch:
            seen = self.batch = SeenBatch(seen)
            self._current.begin_step(self._dataloader_idx)
            if len(self._current.step_rows) >= _NUM_STEP_ROWS:
                self._rows.write_steps(self._current.take_step_rows())
        return seen

    def clear(self, module: nn.Module | None = None) -> None:
        """Forget everything, also what was published and epochs that were cut off; a trainer's next verb starts so.

        Args:
            module: The module that will log; a process that has no batch for a metric of it finds it there.
        """
        for stage in self._stages.values():
            stage.reset()
        self._stages.clear()
        self._num_eval_steps.clear()
        self._published.clear()
        strategy = self._strategy
        if strategy is not None and strategy.world_size > 1:
            self._exchange = MetricExchange(strategy, module)
        self._leave()

    def write_to(self, loggers: Sequence[Logger]) -> None:
        """Write to other loggers from now on; values of evaluation batches from the next evaluation on."""
        self._rows.loggers = loggers
        self._reschedule()

    def send_every(self, num_steps: int) -> None:
        """Send values of training steps after every so many updates from now on; 0 never sends them."""
        self._steps.every = num_steps
        self._reschedule()

    def _reschedule(self) -> None:
        if "train" in self._stages:
            self._steps.schedule()

    # what loops tell

    def start_epoch(self, stage: str, num_dataloaders: int = 1, *, is_trial: bool = False) -> None:
        """Forget the stage's earlier values and collect for its new epoch; the moment becomes "epoch".

        Nothing of a trial is sent to loggers.
        """
        unfinished = self._stages.get(stage)
        if unfinished is not None:
            unfinished.reset()
        self._stages[stage] = StageLog(
            stage,
            num_dataloaders,
            sends_steps=stage != "train" and bool(self._rows.loggers) and not is_trial,
            is_shared=self._exchange is not None,
            num_steps=self._num_eval_steps.get(stage),
        )
        if stage == "train":
            self._steps.schedule()
        self.enter(stage, "epoch")

    def enter(self, stage: str, moment: Moment | None) -> None:
        """Go on collecting for a stage, after another one ran within it.

        Raises:
            RuntimeError: If no epoch of the stage has begun.
        """
        if stage not in self._stages:
            rule = f"one whose epoch has begun ({', '.join(self._stages) or 'none'})"
            raise RuntimeError(must_be("stage", rule, stage, "MetricLog.enter", "Call `start_epoch` first."))
        self._current = self._stages[stage]
        self._entries = self._current.latest
        self.moment = moment
        self.batch = None
        self._dataloader_idx = 0

    def end_train_batch(self, is_update: bool) -> None:
        """Send what training steps logged, if that is due; `is_update` says whether the batch or split has updated."""
        if is_update and self._progress.global_step >= self._steps.next_send:
            self._steps.send(self._stages["train"], self._exchange)

    def reduce_epoch(self) -> None:
        """Reduce the values of the stage's epoch over all processes already, for whoever reads them. Collective.

        Raises:
            MetricMismatchError: On every process, if they asked for different things under one name.
        """
        if self._exchange is not None and self._current.stage:
            self._current.reduced = self._exchange.reduce_epoch(self._current)

    def end_epoch(self) -> list[dict[str, float]]:
        """Reduce and publish the values of the stage's epoch. Collective. Returns them per loader, as numbers.

        Raises:
            MetricMismatchError: As `reduce_epoch`.
        """
        stage = self._current
        self._rows.write_steps(stage.take_step_rows())
        if self._rows.writes:
            stage.warn_of_lost_values()
        self.reduce_epoch()
        self._rows.write_steps(stage.held_rows)
        values = stage.live(with_epoch=True) if stage.reduced is None else stage.reduced
        numbers = to_floats([live.value for live in values])
        self._published.add(stage, values, numbers)
        if stage.stage != "train" and "train" in self._stages:
            self._stages["train"].give_way_to(values)
        of_epoch = [
            (live.entry, number)
            for live, number in zip(values, numbers, strict=True)
            if live.of_epoch and live.entry.options.logger
        ]
        self._rows.write({entry.epoch_name: number for entry, number in of_epoch}, in_training="train" in self._stages)
        if of_epoch:
            self._rows.save()
        self._num_eval_steps[stage.stage] = stage.num_steps
        self.discard()
        return [
            {entry.epoch_name: number for entry, number in of_epoch if entry.dataloader_idx in (None, dataloader_idx)}
            for dataloader_idx in range(stage.num_dataloaders)
        ]

    def discard(self) -> None:
        """Forget the values of the stage's epoch unpublished: a trial leaves no trace."""
        self._current.reset()
        self._stages.pop(self._current.stage, None)
        self._leave()

    def _leave(self) -> None:
        """Be where nothing can be logged."""
        self._current = StageLog("", 0, sends_steps=False)
        self._entries = self._current.latest
        self.moment = None
        self.batch = None

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What was published, and the training epoch that runs, if any: copies of tensors and plain values only.

        It changes nothing. Taken between two batches or between two epochs, as loops do; of a stop within an epoch,
        before the hooks of its end log or read anything. Neither waits for a device nor reads values.
        """
        train = self._stages.get("train")
        return {
            "published": self._published.state_dict(),
            "num_eval_steps": {stage: dict(num_steps) for stage, num_steps in self._num_eval_steps.items()},
            "train": None if train is None else train.state_dict(),
            **self._steps.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if the run from which the state was taken had not stopped, after `start_epoch("train")`.

        What the training epoch has logged since its start is forgotten. A checkpoint cannot hold a metric or a
        `reduce_fx` of one's own: until their name is logged again, values of the epoch that are read lack them. A
        metric's own state is not in here. If `log_every_n_steps` has changed, the new one holds at once.

        Raises:
            RuntimeError: If the state holds a training epoch's values and no training epoch has begun.
        """
        saved, train = state["train"], self._stages.get("train")
        if train is None and saved is not None:
            rule = 'called after `start_epoch("train")`'
            action = "Start the epoch first."
            raise RuntimeError(must_be("load_state_dict", rule, self._current.stage or None, "MetricLog", action))
        self._published.load_state_dict(state["published"])
        self._num_eval_steps = {stage: dict(num_steps) for stage, num_steps in state["num_eval_steps"].items()}
        if train is not None:
            train.load_state_dict(saved or {"entries": [], "num_steps": self._num_eval_steps.get("train", {})})
        if saved is not None:
            self._steps.load_state_dict(state)


class Published:
    """The latest values of epochs that have ended, by the names under which each reader gets them.

    Attributes:
        to_callbacks: Detached tensors of shape ().
        to_loggers: Those meant for loggers.
        to_progress_bars: Those meant for progress bars, as numbers.
    """

    def __init__(self) -> None:
        self.to_callbacks: dict[str, Tensor] = {}
        self.to_loggers: dict[str, Tensor] = {}
        self.to_progress_bars: dict[str, float | int | str] = {}

    def add(self, stage: StageLog, values: Sequence[LiveValue], numbers: Sequence[float]) -> None:
        """Publish the values of a stage whose epoch ends; `numbers` are the same values as numbers."""
        self.to_callbacks |= for_callbacks(values, stage)
        self.to_loggers |= for_loggers(values)
        self.to_progress_bars |= {
            live.name: number
            for live, number in zip(values, numbers, strict=True)
            if live.entry.options.prog_bar and live.stands_for(live.name)
        }

    def clear(self) -> None:
        """Forget everything."""
        self.to_callbacks.clear()
        self.to_loggers.clear()
        self.to_progress_bars.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything, as copies of tensors and plain values."""
        return {
            "to_callbacks": _save(self.to_callbacks),
            "to_loggers": _save(self.to_loggers),
            "to_progress_bars": dict(self.to_progress_bars),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back a state in place of what was published."""
        self.to_callbacks = _load(state["to_callbacks"])
        self.to_loggers = _load(state["to_loggers"])
        self.to_progress_bars = dict(state["to_progress_bars"])


def _save(metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: save_tensor(value) for name, value in metrics.items()}


def _load(metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: load_tensor(value) for name, value in metrics.items()}
