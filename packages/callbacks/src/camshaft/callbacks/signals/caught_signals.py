"""Signals that are noted instead of ending the process, and the handlers that were there before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.hooks_core.user_warnings import warn_user


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
