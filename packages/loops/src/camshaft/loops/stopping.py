"""When training ends."""

from __future__ import annotations

from camshaft.hooks_core.method_source import mentions_method
from camshaft.loops.agreement import Agreement
from camshaft.loops.argument_checks import check_at_least
from camshaft.loops.fit_limits import FitLimits
from camshaft.loops.progress import FitProgress
from camshaft.loops.run import Run, SaveRequest
from camshaft.loops.time_limit import Stopwatch


class StoppingRules:
    """Tells when training ends: at a limit, or where something asked it to and no minimum forbids it.

    Args:
        limits: How long to train.
        progress: How far training is, and whether this process wants it to stop.
        agree_every_n_batches: Batches after which several processes ask each other; None chooses, see `Agreement`.

    Attributes:
        limits: The same.
        step_limit: The largest number of updates.
        agree_every_n_batches: The same.
        agreement: By what several processes decide together; None with one process, and while nothing is trained.
        is_preempted: Whether training is to end as soon as it can, whatever minimum there is.
        reason: Why the latest fit ended, in words; None if nothing ended it, and while it runs.
    """

    def __init__(self, limits: FitLimits, progress: FitProgress, agree_every_n_batches: int | None = None) -> None:
        action = "Pass None to let it be chosen."
        check_at_least("agree_every_n_batches", agree_every_n_batches, 1, optional=True, action=action)
        self.limits = limits
        self.step_limit = limits.step_limit
        self.agreement: Agreement | None = None
        self.is_preempted = False
        self.reason: str | None = None
        self._progress = progress
        self.agree_every_n_batches = agree_every_n_batches
        self._stopwatch: Stopwatch | None = None
        self._run: Run | None = None
        self._step_of_epoch: int | None = None

    def follow(self, limits: FitLimits) -> None:
        """Decide by other limits from now on."""
        self.limits = limits
        self.step_limit = limits.step_limit

    def reset(self) -> None:
        """Forget what runs before were asked."""
        self._progress.should_stop = self.is_preempted = False
        self.reason = None

    def begin(self, run: Run) -> None:
        """Decide together with the other processes of a run."""
        self._run = run
        if run.strategy.world_size > 1:
            self.agreement = Agreement(run.strategy, self._progress, self.agree_every_n_batches)
        run.on_preempt = self._preempt
        if run.preempt_path is not None:
            self._preempt(run.preempt_path)

    def end(self) -> None:
        """Count no more time, and decide nothing any more."""
        self.note_time()
        self.reason = self._why_done()
        if self._run is not None:
            self._run.on_preempt = None
        self._stopwatch = self.agreement = self._run = None

    def start_clock(self) -> None:
        """Count the time from here on as training, after that of the parts before."""
        self._stopwatch = Stopwatch(self._progress.elapsed_seconds)

    def note_time(self) -> None:
        """Write the time so far into the progress."""
        if self._stopwatch is not None:
            self._progress.elapsed_seconds = self._stopwatch.elapsed_seconds

    def time_is_over(self) -> bool:
        """Whether training has taken all the time that it may."""
        self.note_time()
        return self.limits.max_seconds is not None and self._progress.elapsed_seconds >= self.limits.max_seconds

    def agree(self) -> None:
        """Come to one decision with the other processes, if there are any. Collective."""
        if self.agreement is None or self._run is None:
            return
        path = self.agreement.hold()
        if path is not None:
            self._take_leave(self._run, path)

    def save(self) -> bool:
        """Write the checkpoints that were asked for, and agree anew where there were any. Collective.

        Returns:
            Whether training is to end here, since a preemption was asked for while they were written.
        """
        run = self._run
        assert run is not None
        while run.save_requests:
            run.save_point()
            self.agree()
        return self.is_preempted

    @property
    def wishes(self) -> FitProgress | Agreement:
        """Whose `should_stop` counts: what this process wants, or what all agreed upon."""
        return self._progress if self.agreement is None else self.agreement

    def may_stop(self) -> bool:
        """Whether `should_stop` is obeyed already."""
        epochs, steps = self.limits.min_epochs, self.limits.min_steps
        return self.is_preempted or (
            (epochs is None or self._progress.current_epoch >= epochs)
            and (steps is None or self._progress.global_step >= steps)
        )

    def is_done(self) -> bool:
        """Whether no further epoch is to begin."""
        progress, limits = self._progress, self.limits
        return (
            progress.current_epoch >= limits.epoch_limit
            or progress.global_step >= limits.step_limit
            or (self.wishes.should_stop and self.may_stop())
        )

    def start_epoch(self, *, is_new: bool) -> None:
        """Remember where an epoch begins; one that goes on after a resume has no known beginning."""
        self._step_of_epoch = self._progress.global_step if is_new else None

    def check_can_end(self, run: Run) -> None:
        """Check, after an epoch, that something will end the run.

        Limits of epochs and of time end it, and so may `should_stop` where the module, its data module or a callback
        uses it. All else needs updates. (Those that overflowed are none, but the next may be.)

        Raises:
            RuntimeError: If nothing of this is there, and no update was made in an epoch with batches.
        """
        limits, progress = self.limits, self._progress
        if progress.global_step != self._step_of_epoch or limits.epoch_limit != float("inf") or self.is_done():
            return
        if limits.max_seconds is not None or run.strategy.has_skipped_step:
            return
        if any(mentions_method(type(one).__mro__, "should_stop") for one in (run.module, run.data, *run.callbacks)):
            return
        is_automatic = getattr(run.module, "automatic_optimization", True)
        does, action = "return a loss", "Return a loss, or pass max_epochs or max_time."
        if not is_automatic:
            does, action = "step an optimizer", "Step one of `self.optimizers()`, or pass max_epochs or max_time."
        raise RuntimeError(
            f"`training_step` must {does} in some batch of each epoch, where nothing else can end training "
            f"(max_epochs={limits.max_epochs}, max_steps={limits.max_steps}), but got no update in epoch "
            f"{progress.current_epoch - 1} in {type(run.module).__qualname__}. {action}"
        )

    def _why_done(self) -> str | None:
        progress, limits = self._progress, self.limits
        if self.is_preempted:
            return "preempted"
        if progress.current_epoch >= limits.epoch_limit:
            return f"max_epochs={int(limits.epoch_limit)} reached"
        if progress.global_step >= limits.step_limit:
            return f"max_steps={limits.max_steps} reached"
        if self.time_is_over():
            return f"max_time={limits.max_time} is over"
        return "should_stop was set" if self.wishes.should_stop else None

    def _preempt(self, path: str) -> None:
        """See `Run.preempt`."""
        assert self._run is not None
        self._progress.should_stop = True
        if self.agreement is not None:
            self.agreement.preempt_path = path
        else:
            self._take_leave(self._run, path)

    def _take_leave(self, run: Run, path: str) -> None:
        self.is_preempted = True
        run.save_requests.append(SaveRequest(path))  # a signal may come while one is written
