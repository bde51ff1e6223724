"""`Callback` with defaults for the hooks of every release, whose overrides call them by `super()`."""

from __future__ import annotations

from functools import wraps

from camshaft.compat.data_module import do_nothing
from camshaft.compat.names.stand_ins import accept_pl_module
from camshaft.hooks_core import Callback as Callback
from camshaft.hooks_core import Receiver
from camshaft.hooks_core.eras.hooks import hooks_of_eras

# Put into the class itself, since stock callbacks are subclasses of it, and an override of a subclass of one of these
# calls `super()`, too. The defaults of events do nothing whatever they are given; none counts as an override.
accept_pl_module(Callback)  # in its signatures, which stay
for _spec in hooks_of_eras().values():
    if _spec.kind == "event" and Receiver.CALLBACK in _spec.receivers:
        _today = getattr(Callback, _spec.name, None)
        setattr(Callback, _spec.name, do_nothing if _today is None else wraps(_today)(lambda *_, **__: None))
