"""Strategies and plugins with the arguments of earlier releases."""

from __future__ import annotations

from typing import Any, ClassVar

from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.messages import must_be
from camshaft.strategies import DDPStrategy as _DDPStrategy
from camshaft.strategies import ShardedStrategy as _ShardedStrategy
from camshaft.strategies import SingleDeviceStrategy as _SingleDeviceStrategy

_RENAMED = {"process_group_backend": "backend", "ddp_comm_hook": "comm_hook", "ddp_comm_state": "comm_state"}
_UNUSED = {True: "ddp_find_unused_parameters_true", False: "ddp_find_unused_parameters_false", None: "ddp"}


class _Named(StandIn):
    """A metaclass whose calls return a strategy's name if possible, so that the trainer chooses devices."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)  # type: ignore[attr-defined]


class DDPStrategy(metaclass=_Named):
    """A value of `Trainer(strategy=...)`: a name, or for more than unused parameters an object of ours.

    Calling it returns "ddp", "ddp_find_unused_parameters_true" or "ddp_find_unused_parameters_false", whose devices are
    those of `Trainer(devices=...)`; with further arguments a `camshaft.strategies.DDPStrategy`, which takes its devices
    by itself. Subclasses are refused: they would override methods that are not called.
    """

    __stands_for__: ClassVar[type] = _DDPStrategy

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if cls.__module__ != __name__:
            action = "Subclass the one of `camshaft.strategies`."
            raise TypeError(must_be(cls.__mro__[1].__name__, "used as it is", cls, cls.__qualname__, action))
        super().__init_subclass__(**kwargs)

    def __init__(self, *, find_unused_parameters: bool | None = None, **kwargs: Any) -> None:
        """Do nothing, as `make` is called in its place; tell parsers of a command line the arguments."""

    @classmethod
    def make(cls, *, find_unused_parameters: bool | None = None, **kwargs: Any) -> Any:
        """Return the name or the strategy.

        Args:
            find_unused_parameters: As today.
            kwargs: Today's arguments of the strategy, or their earlier names.

        Raises:
            TypeError: If an argument is none of today's.
        """
        if not kwargs:
            return _UNUSED[find_unused_parameters]
        arguments = {_RENAMED.get(name, name): value for name, value in kwargs.items()}
        return _DDPStrategy(find_unused_parameters=find_unused_parameters, **arguments)


class DDPPlugin(DDPStrategy):
    """`DDPStrategy` under its name up to 1.5, when it looked for unused parameters by default."""

    __stands_for__: ClassVar[type] = _DDPStrategy

    @classmethod
    def make(cls, *, find_unused_parameters: bool | None = True, **kwargs: Any) -> Any:
        """Return the name or the strategy; see `DDPStrategy`."""
        return super().make(find_unused_parameters=find_unused_parameters, **kwargs)


class FSDPStrategy(DDPStrategy):
    """A value of `Trainer(strategy=...)`: "fsdp", or with today's arguments a `ShardedStrategy`."""

    __stands_for__: ClassVar[type] = _ShardedStrategy

    def __init__(self, **kwargs: Any) -> None:
        """Do nothing, as in `DDPStrategy`."""

    @classmethod
    def make(cls, **kwargs: Any) -> Any:
        """Return the name or the strategy.

        Args:
            kwargs: Arguments of `camshaft.strategies.ShardedStrategy`.

        Raises:
            TypeError: If an argument is none of these; those of earlier releases have no simple counterpart.
        """
        return _ShardedStrategy(**kwargs) if kwargs else "fsdp"


class SingleDeviceStrategy(_SingleDeviceStrategy, metaclass=StandIn):
    """`camshaft.strategies.SingleDeviceStrategy`, on the CPU by default."""

    __stands_for__: ClassVar[type] = _SingleDeviceStrategy

    def __init__(self, device: Any = "cpu", **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
