"""Running one check so that no process waits for ever."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from camshaft.hooks_core.protocols import Strategy
from camshaft.strategies.conformance.ranks import Ended, OutOfStepError, Ranks
from camshaft.strategies.conformance.report import ConformanceError
from camshaft.strategies.conformance.trial import Departed, Trial

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_NUM_FRAMES = 6


@frozen
class Check:
    """One promise of the strategy protocol, and how to see whether a strategy keeps it.

    Attributes:
        function: Tries the strategy and notes what departs from the promise.
    """

    function: Callable[[Trial], None]

    @property
    def name(self) -> str:
        """Its name, such as "training_equals_one_device"."""
        return self.function.__name__

    @property
    def promise(self) -> str:
        """The promise in a sentence."""
        return (self.function.__doc__ or "").strip()

    def __call__(
        self,
        make_strategy: Callable[[], Strategy],
        directory: Path | str,
        *,
        rtol: float = 1e-4,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Try a strategy. Collective: all of its processes call it.

        It runs in a thread of its own, so that the caller is told if the strategy waits for ever.

        Args:
            make_strategy: Makes a new strategy. The processes are started already, or `connect` starts them.
            directory: A folder that all processes see and that no other check uses; made as needed.
            rtol: How far weights may be off those of one device in 32 bits, relative to the largest of a tensor.
            timeout_seconds: After so long a process gives the strategy up.

        Raises:
            ConformanceError: If the strategy does not keep the promise, raises, or waits for ever. It is raised on
                every process, with what all of them saw.
            Exception: What `make_strategy` raises when it is first called.
        """
        directory = Path(directory)
        strategy = make_strategy()
        try:
            strategy.connect()
            ranks = Ranks(directory, strategy.global_rank, strategy.world_size, timeout_seconds)
        except Exception as cause:
            finding = f"it raised {_in_words(cause)} before the check began"
            raise ConformanceError(self.name, {0: [finding]}, in_step=False) from cause
        trial = Trial(make_strategy, directory, rtol, ranks)
        error, ended = _run(self.function, trial, timeout_seconds)
        everywhere = ranks.end(ended)
        findings = {rank: _lines(end) for rank, end in everywhere.items()}
        if any(findings.values()):
            kinds = {end.kind if end is not None else "missing" for end in everywhere.values()}
            in_step = len(kinds) == 1 and not kinds & {"missing", _STUCK}
            raise ConformanceError(self.name, findings, in_step=in_step) from error


_STUCK = "stuck"


def _run(function: Callable[[Trial], None], trial: Trial, timeout_seconds: float) -> tuple[BaseException | None, Ended]:
    """Run a check in a thread. Returns what it raised, and how it ended."""
    done = threading.Event()
    raised: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def body() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has its own
            function(trial)
        except Departed:
            pass
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), daemon=True)
    thread.start()
    reason = _wait(done, trial.ranks, timeout_seconds)
    if reason is not None:
        return None, Ended(trial.findings, _STUCK, f"{reason}; it is still at {_place(thread)}")
    if not raised:
        return None, Ended(trial.findings)
    error = raised[0]
    kind = type(error).__name__
    text = str(error) if isinstance(error, OutOfStepError) else f"it raised {_in_words(error)}"
    return error, Ended(trial.findings, kind, text)


def _wait(done: threading.Event, ranks: Ranks, timeout_seconds: float) -> str | None:
    """Wait for the thread. Returns why it was given up, or None if it ended."""
    deadline = time.monotonic() + timeout_seconds
    others_failed_at: float | None = None
    while not done.wait(_POLL_SECONDS):
        now = time.monotonic()
        if now > deadline:
            return f"the strategy did not return within {timeout_seconds:g} s"
        if ranks.size > 1 and others_failed_at is None and ranks.first_error() is not None:
            others_failed_at = now
        if others_failed_at is not None and now > others_failed_at + _GRACE_SECONDS:
            return "the strategy waits for another rank, where the check failed"
    return None


def _lines(ended: Ended | None) -> list[str]:
    if ended is None:
        return ["the check did not end on this rank"]
    return [*ended.findings, *([ended.text] if ended.kind is not None else [])]


def _in_words(error: BaseException) -> str:
    """An exception with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _place(thread: threading.Thread) -> str:
    frame: Any = sys._current_frames().get(thread.ident or 0)
    entries = traceback.extract_stack(frame) if frame is not None else []
    names = [f"{Path(entry.filename).name}:{entry.lineno} {entry.name}" for entry in entries]
    own = [position for position, entry in enumerate(entries) if entry.filename == __file__]
    names = names[own[-1] + 1 :] if own else names  # what the check called
    if len(names) > _NUM_FRAMES:
        names[_NUM_FRAMES - 2 : -2] = ["..."]
    return " > ".join(names) or "an unknown place"
