"""Precision plugins under Lightning's names, whose calls return precisions of `camshaft.strategies.precision`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.amp import GradScaler

from camshaft.compat.names.stand_ins import StandIn
from camshaft.hooks_core.messages import must_be
from camshaft.strategies.precision import AutocastPrecision, ScaledPrecision, TruePrecision, choose_precision
from camshaft.strategies.precision import Precision as _Precision

_SUBCLASS = "Subclass `camshaft.strategies.precision.Precision`, and pass it as `Trainer(precision=...)`."


class _Plugin(StandIn):
    """A metaclass whose calls return a precision of ours; subclasses would override methods that are not called."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:
            base = cls.__mro__[1].__name__
            raise TypeError(must_be(base, "used as it is", cls, cls.__qualname__, _SUBCLASS))
        make: Callable[..., Any] = cls.__dict__["make"].__func__
        return make(*args, **kwargs)


class Precision(metaclass=_Plugin):
    """The precision "32-true". `isinstance` is true of every precision."""

    __stands_for__: ClassVar[type] = _Precision

    @staticmethod
    def make() -> _Precision:
        """Return it."""
        return _Precision()


class MixedPrecision(Precision):
    """Autocast, with a gradient scaler for float16."""

    __stands_for__: ClassVar[type] = AutocastPrecision

    @staticmethod
    def make(
        precision: str | int = "16-mixed",
        device: str | None = None,
        scaler: GradScaler | None = None,
        use_cpu: bool = False,
    ) -> _Precision:
        """Return it.

        Args:
            precision: "16-mixed" or "bf16-mixed"; 16 or "bf16".
            device: The type of the device; None is CUDA, if it is available.
            scaler: A scaler of torch's, whose settings are taken.
            use_cpu: Whether the device is the CPU, as up to 1.9.

        Raises:
            ValueError: If it is no mixed precision, or the scaler is switched off, a subclass, or given for bfloat16.
        """
        where = "MixedPrecision"
        device_type = "cpu" if use_cpu else device or ("cuda" if torch.cuda.is_available() else "cpu")
        device_type = str(device_type).partition(":")[0]
        chosen = choose_precision(precision, device_type)
        if not isinstance(chosen, AutocastPrecision):
            action = "Pass one of these, or `Trainer(precision=...)`."
            raise ValueError(must_be("precision", "'16-mixed' or 'bf16-mixed'", precision, where, action))
        if scaler is None:
            return chosen
        if not isinstance(chosen, ScaledPrecision):
            raise ValueError(must_be("scaler", "left out for 'bf16-mixed'", scaler, where, "Leave it out."))
        is_plain = type(scaler).__name__ == "GradScaler" and isinstance(scaler, GradScaler) and scaler.is_enabled()
        if not is_plain:
            action = "Pass settings of torch's scaler: `ScaledPrecision(device_type, init_scale=...)`."
            raise ValueError(must_be("scaler", "a torch.amp.GradScaler that is enabled", scaler, where, action))
        return ScaledPrecision(
            device_type,
            init_scale=scaler.get_scale(),
            growth_factor=scaler.get_growth_factor(),
            backoff_factor=scaler.get_backoff_factor(),
            growth_interval=scaler.get_growth_interval(),
        )


class HalfPrecision(Precision):
    """Everything in float16, or bfloat16."""

    __stands_for__: ClassVar[type] = TruePrecision

    @staticmethod
    def make(precision: str = "16-true") -> _Precision:
        """Return it; `precision` is "16-true" or "bf16-true".

        Raises:
            ValueError: If it is neither.
        """
        if precision not in ("16-true", "bf16-true"):
            raise ValueError(
                must_be("precision", "'16-true' or 'bf16-true'", precision, "HalfPrecision", "Pass one of these.")
            )
        return choose_precision(precision, "cpu")


class DoublePrecision(Precision):
    """Everything in float64."""

    __stands_for__: ClassVar[type] = TruePrecision

    @staticmethod
    def make() -> _Precision:
        """Return it."""
        return choose_precision("64-true", "cpu")


class FSDPPrecision(Precision):
    """A precision for sharded training, by its name."""

    __stands_for__: ClassVar[type] = _Precision

    @staticmethod
    def make(precision: str = "32-true", scaler: Any = None) -> _Precision:
        """Return it.

        Raises:
            ValueError: If it is unknown, or a scaler is given.
        """
        if scaler is not None:
            action = "Leave it out: sharded gradients are scaled by ours."
            raise ValueError(must_be("scaler", "left out", scaler, "FSDPPrecision", action))
        return choose_precision(precision, "cuda" if torch.cuda.is_available() else "cpu")
