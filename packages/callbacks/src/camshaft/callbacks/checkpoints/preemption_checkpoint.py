"""Callback that saves a checkpoint and ends training when the job is preempted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.callbacks.arguments import InvalidArgumentError, check_file_name, check_number
from camshaft.callbacks.checkpoints.files import default_folder
from camshaft.callbacks.checkpoints.model_checkpoint import ModelCheckpoint
from camshaft.callbacks.checkpoints.names import absolute_folder
from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import warn_user
from camshaft.hooks_core.support.processes import OrderlyExit
from camshaft.hooks_core.support.remote_files import join

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


_REQUEUE_FAILED = 1  # exit code
_MAX_EXIT_CODE = 255
_REQUEUE_TIMEOUT_SECONDS = 60.0


class PreemptionCheckpoint(Callback):
    """Saves a checkpoint and ends training when a signal announces preemption.

    Signals are caught from set-up to teardown of fit. A signal to any one rank counts for all: they save together at
    the next save point, after a validation or a save that is running, whatever `min_epochs` is. If training is over
    already, the final state is saved. `fit(ckpt_path=...)` resumes from the checkpoint exactly. Further signals neither
    request another save nor interrupt this one; Ctrl-C does, if "SIGINT" is not caught. The previous handlers are not
    called, and are restored after fit. Only the main thread can catch signals; in other threads it warns. torchrun
    forwards SIGTERM to its processes, and is itself ended by SIGUSR1.

    Args:
        signals: Their names. The default leaves out what the system does not have.
        dirpath: Folder of the checkpoint, or its URL; None is where the trainer's first `ModelCheckpoint` saves, so
            that `fit(ckpt_path="last")` finds it, else "checkpoints" as there.
        filename: Its name without extension; a file of this name is replaced.
        requeue: Whether rank 0 requeues the SLURM job, by `scontrol requeue`, once the checkpoint is durable. It does
            not after SIGTERM alone, which is `scancel`, or a preemption after which SLURM requeues by itself: ask for
            another signal by `#SBATCH --signal=USR1@120`. Outside of SLURM it warns.
        exit_code: Exit code of the process after fit, by `SystemExit`, on every rank; 1 if `requeue` failed. None
            returns from fit, and the script continues: read `preempted`.

    Attributes:
        preempted: Whether the latest fit was preempted, on any rank; known from `on_fit_end` on.
        ckpt_path: Path of the checkpoint; None before fit.

    Raises:
        InvalidArgumentError: If a signal cannot be caught, `filename` is empty or has a folder in it, nothing can be
            written to `dirpath`, or `exit_code` is not from 0 to 255.
    """

    only_observes = True
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
        self.signals = check_signals(usual if signals is None else signals, where)
        self.dirpath = None if dirpath is None else absolute_folder(dirpath, where)
        check_file_name(where, filename)
        self.filename = filename
        self.requeue = requeue
        action = "Pass None to return from fit."
        check_number(where, action, least=0, most=_MAX_EXIT_CODE, is_int=True, or_none=True, exit_code=exit_code)
        self.exit_code = exit_code
        self.preempted = False
        self.ckpt_path: str | None = None
        self._should_requeue = False
        self._has_failed = False
        self._request: Callable[[], None] | None = None  # asks for the checkpoint; there while signals are caught
        self._received: list[str] = []
        self._handlers: dict[signal.Signals, Any] = {}  # the previous ones

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Install the signal handlers. Collective in fit."""
        if stage != "fit" or trainer.fast_dev_run:
            return
        self.preempted = self._should_requeue = self._has_failed = False
        folder = from_rank_zero(trainer.strategy, lambda: self._folder(trainer))
        self.ckpt_path = path = join(folder, self.filename + self.FILE_EXTENSION)
        if self.requeue and slurm_job() is None:
            warn_user(f"{type(self).__name__} will not requeue: this is not a SLURM job. Submit one by `sbatch`.")
        self._received = []
        self._request = lambda: trainer.preempt(path)
        self._catch_signals()

    @property
    def received_sigterm(self) -> bool:
        """True if this process got a SIGTERM in the current or last fit."""
        return "SIGTERM" in self._received

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Agree on whether any rank was preempted; save if training was over already. Collective."""
        if self._request is None or self.ckpt_path is None:
            return
        of_ranks = trainer.strategy.all_gather(list(self._received))
        received = {name for names in of_ranks for name in names}
        self.preempted = bool(received) or trainer.is_preempted
        self._should_requeue = self.requeue and bool(received - {"SIGTERM"})
        if self.preempted and not trainer.is_preempted:
            trainer.save_checkpoint(self.ckpt_path)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Let the exception end the process."""
        self._has_failed = True

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Restore the previous handlers, and exit if asked to. Collective after a preempted fit.

        A signal that came after the ranks had agreed on the end is raised again for the previous handler.

        Raises:
            OrderlyExit: A `SystemExit` with `exit_code`, if the fit was preempted and it is not None.
        """
        if self._request is None or stage != "fit":
            return
        is_queued = True
        if self.preempted and not self._has_failed:
            job = slurm_job() if self._should_requeue else None
            # No rank exits before this, since a launcher would then end the others.
            is_queued = from_rank_zero(trainer.strategy, lambda: job is None or requeue(job))
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:  # not replaced since
                signal.signal(number, handler)
        self._handlers, self._request = {}, None
        if self._has_failed:
            return
        if not self.preempted:
            for name in self._received:
                signal.raise_signal(signal.Signals[name])
        elif self.exit_code is not None:
            raise OrderlyExit(self.exit_code if is_queued else _REQUEUE_FAILED)

    def _catch_signals(self) -> None:
        """Replace the current handlers; outside the main thread only warn."""
        where, thread = type(self).__name__, threading.current_thread()
        if thread is not threading.main_thread():
            warn_user(f"{where} catches no signals: this is the thread {thread.name!r}. Call fit in the main thread.")
            return
        for number in map(signal.Signals.__getitem__, self.signals):
            handler = signal.getsignal(number)
            if handler is None:
                warn_user(f"{where} leaves {number.name} to a handler outside of Python. Choose other `signals`.")
            else:
                self._handlers[number] = handler
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, and request the checkpoint at the first one.

        It does nothing else: no output, no files, nothing that another handler or thread may be in the middle of.
        """
        name = signal.Signals(number).name
        if name not in self._received:
            self._received.append(name)
            if len(self._received) == 1 and self._request is not None:
                self._request()

    def _folder(self, trainer: TrainerProtocol) -> str:
        of_others = [one.dirpath for one in trainer.callbacks if isinstance(one, ModelCheckpoint)]
        return next(filter(None, [self.dirpath, *of_others]), None) or default_folder(trainer)


def check_signals(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the names of signals, each once.

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
            raise InvalidArgumentError("signals", "signals of this system that can be caught", name, where, action)
    return known


def slurm_job() -> str | None:
    """Return the id of this process's SLURM job, of the task in a job array; None outside of SLURM."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def requeue(job: str) -> bool:
    """Run `scontrol requeue`. Return whether it succeeded; warn if it did not."""
    command = ["scontrol", "requeue", job]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_REQUEUE_TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().rstrip(".")
        warn_user(f"SLURM job {job} could not be requeued: {reason}. Submit it again by hand.")
        return False
    return True
