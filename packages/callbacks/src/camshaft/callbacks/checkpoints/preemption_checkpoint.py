"""Saving and leaving in good order when the machine is wanted back."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.checkpoints.files import default_folder
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.checkpoints.names import checked_folder, checked_name
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core import Callback
from camshaft.hooks_core.orderly_exit import OrderlyExit
from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_FAILED = 1
_LARGEST_STATUS = 255


class PreemptionCheckpoint(Callback):
    """Saves a checkpoint and ends training when a signal says that the machine is wanted back.

    From set-up to teardown of fit. A signal to any one rank counts for all: they save together as soon as no step is
    half done, after a validation or a save that is running, whatever minimum of epochs is set; one that comes when
    training is over already saves what it ended with. `fit(ckpt_path=...)` goes on from the checkpoint as if nothing
    had happened. Further signals neither ask again nor interrupt the saving; Ctrl-C does, if "SIGINT" is not caught.
    The former handlers are not called, and are back after fit. Only the main thread can catch signals; it warns in
    others. torchrun hands SIGTERM on to its processes, and is itself ended by SIGUSR1.

    Args:
        signals: Their names. The default leaves out what the system does not have.
        dirpath: Folder of the checkpoint; None is where the trainer's first `ModelCheckpoint` saves, so that
            `fit(ckpt_path="last")` finds it, else "checkpoints" as there.
        filename: Its name without extension; a file of this name is replaced.
        requeue: Whether rank 0 has SLURM run the job again, by `scontrol requeue`, once the checkpoint is durable. It
            does not after SIGTERM alone, which is `scancel`, or a preemption that SLURM follows up itself: ask for
            another signal by `#SBATCH --signal=USR1@120`. Outside of SLURM it warns.
        exit_code: What the process ends with after fit, by `SystemExit`, on every rank; 1 if `requeue` failed. None
            returns from fit, and the script goes on: look at `preempted`.

    Attributes:
        preempted: Whether the latest fit was told to leave, on any rank; known from `on_fit_end` on.
        ckpt_path: Path of the checkpoint; None before fit.

    Raises:
        InvalidArgumentError: If a signal cannot be caught, `filename` is empty or has a folder in it, `dirpath` is no
            local folder, or `exit_code` is not from 0 to 255.
    """

    FILE_EXTENSION: ClassVar[str] = ".ckpt"

    def __init__(
        self,
        signals: Iterable[str] | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str = "preempted",
        *,
        requeue: bool = False,
        exit_code: int | None = 0,
    ) -> None:
        where = type(self).__name__
        usual = [name for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]
        self.signals = checked_signals(usual if signals is None else signals, where)
        self.dirpath = None if dirpath is None else checked_folder(dirpath, where)
        self.filename = checked_name(filename, where)
        self.requeue = requeue
        if exit_code is not None and (isinstance(exit_code, bool) or exit_code not in range(_LARGEST_STATUS + 1)):
            action = "Pass None to return from fit."
            raise InvalidArgumentError("exit_code", "an int from 0 to 255, or None", exit_code, where, action)
        self.exit_code = exit_code
        self.preempted = False
        self.ckpt_path: str | None = None
        self._asks_requeue = False
        self._has_failed = self._is_over = False
        self._caught: CaughtSignals | None = None

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Begin to catch signals. Collective in fit."""
        if stage != "fit" or trainer.fast_dev_run:
            return
        self.preempted = self._asks_requeue = self._has_failed = self._is_over = False
        folder = from_rank_zero(trainer.strategy, lambda: self._folder(trainer))
        self.ckpt_path = path = os.path.join(folder, self.filename + self.FILE_EXTENSION)
        if self.requeue and slurm_job() is None and trainer.is_global_zero:
            warn_user(f"{type(self).__name__} will requeue nothing: this is no job of SLURM.")
        self._caught = CaughtSignals(self.signals, lambda: trainer.preempt(path))
        self._caught.install(type(self).__name__)

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Learn whether any rank was told to leave; save if it was too late to end training. Collective."""
        if self._caught is None or self.ckpt_path is None:
            return
        of_ranks = trainer.strategy.all_gather(list(self._caught.received))
        received = {name for names in of_ranks for name in names}
        self._is_over = True
        self.preempted = bool(received) or trainer.is_preempted
        self._asks_requeue = self.requeue and bool(received - {"SIGTERM"})
        if self.preempted and not trainer.is_preempted:
            trainer.save_checkpoint(self.ckpt_path)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Leave it to the exception to end the process."""
        self._has_failed = True

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Put the former handlers back, and leave if that was asked for. Collective after a preempted fit.

        A signal that came after the others had agreed on the end goes to the former handler.

        Raises:
            OrderlyExit: A `SystemExit` with `exit_code`, if the fit was preempted and it is not None.
        """
        if self._caught is None or stage != "fit":
            return
        caught, self._caught = self._caught, None
        if self._has_failed:
            caught.restore()
            return
        exit_code = self.exit_code
        if self.preempted:
            # In the middle of this no rank leaves, so that a launcher ends none of the others.
            is_queued = from_rank_zero(trainer.strategy, self._requeue)
            exit_code = exit_code if is_queued or exit_code is None else _FAILED
        caught.restore()
        if self.preempted and exit_code is not None:
            raise OrderlyExit(exit_code)
        if not self.preempted:
            caught.send_again()

    def _requeue(self) -> bool:
        """Returns whether what was to be done is done."""
        job = slurm_job()
        return True if not self._asks_requeue or job is None else requeue(job)

    def _folder(self, trainer: TrainerProtocol) -> str:
        if self.dirpath is not None:
            return self.dirpath
        of_others = (one.dirpath for one in trainer.callbacks if isinstance(one, ModelCheckpoint))
        return next((folder for folder in of_others if folder is not None), None) or default_folder(trainer)


def checked_signals(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names of signals, each once.

    Raises:
        InvalidArgumentError: If there is none, or one that this system does not have or that cannot be caught.
    """
    action = "Pass names such as 'SIGTERM' or 'SIGUSR1'."
    if isinstance(names, str):
        raise InvalidArgumentError("signals", "a tuple of names", names, where, f"Pass ({names!r},).")
    known = tuple(dict.fromkeys(names))
    if not known:
        raise InvalidArgumentError("signals", "at least one signal", known, where, action)
    for name in known:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            rule = "names of signals of this system that can be caught"
            raise InvalidArgumentError("signals", rule, name, where, action)
    return known


class CaughtSignals:
    """Handlers that note signals by their names, and call something for the first one.

    Handlers do no more than that: no output, no files, nothing that another handler or thread may be in the middle of.

    Args:
        names: Of the signals.
        on_first: Called in the handler, once.

    Attributes:
        received: Names of the signals that came, in their order, each once.
    """

    def __init__(self, names: Iterable[str], on_first: Callable[[], None]) -> None:
        self.received: list[str] = []
        self._numbers = [signal.Signals[name] for name in names]
        self._on_first = on_first
        self._before: dict[signal.Signals, Any] = {}

    def install(self, where: str) -> None:
        """Take the place of other handlers; in another thread than the main one it only warns.

        Args:
            where: The class to name in warnings.
        """
        if threading.current_thread() is not threading.main_thread():
            warn_user(
                f"{where} catches no signals: Python lets only the main thread handle them, and this is "
                f"{threading.current_thread().name!r}. Call fit in the main thread."
            )
            return
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is None:
                warn_user(f"{where} does not catch {number.name}: its handler, which is not of Python, would be lost.")
                continue
            self._before[number] = before
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put the former handlers back, but for those that somebody else has replaced meanwhile."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        self._before.clear()

    def send_again(self) -> None:
        """Send what came to this process again, to the handlers that are there now."""
        for name in self.received:
            signal.raise_signal(signal.Signals[name])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name in self.received:
            return
        is_first = not self.received
        self.received.append(name)
        if is_first:
            self._on_first()


_MOST_SECONDS = 60.0


def slurm_job() -> str | None:
    """The job that this process is part of, as `scontrol` knows it: of an array, the task; None outside of SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def requeue(job: str) -> bool:
    """Run `scontrol requeue`. Returns whether it succeeded; warns if it did not."""
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=_MOST_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        warn_user(f"SLURM job {job} could not be requeued: {error}")
        return False
    if done.returncode != 0:
        warn_user(f"SLURM job {job} could not be requeued: {done.stderr.strip() or done.returncode}")
    return done.returncode == 0
