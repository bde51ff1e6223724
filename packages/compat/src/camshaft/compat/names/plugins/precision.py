"""Precision plugins under Lightning's names: precisions of `camshaft.strategies.precision`, or bases of one's own.

A call of a plugin returns a precision of ours. An object of a subclass does what that precision does, through the
methods of Lightning's that it overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from camshaft.compat.names.plugins.overrides import (
    OF_PRECISIONS,
    Done,
    function_or_none,
    is_overridden,
    translate_overrides,
)
from camshaft.compat.names.stand_ins import StandIn, settable
from camshaft.compat.names.table import uncalled
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.hooks_core.support.transfer import map_nested
from camshaft.strategies.precision import (
    PRECISIONS,
    AutocastPrecision,
    ScaledPrecision,
    TruePrecision,
    choose_precision,
)
from camshaft.strategies.precision import Precision as _Precision

_OF_STEPS = (
    *("train_step_context", "val_step_context", "test_step_context", "predict_step_context"),
    *("forward_context", "autocast_context_manager", "convert_input"),
)


class _Plugin(StandIn):
    """A metaclass whose calls return a precision of ours, but for subclasses an object of these."""

    make: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:
            return super().__call__(*args, **kwargs)
        return cls.make(*args, **kwargs)


def _delegated(name: str, doc: str) -> Any:
    """Return a property that is one of the precision which a plugin stands for."""
    return property(attrgetter(f"_own.{name}"), lambda plugin, value: setattr(plugin._own, name, value), doc=doc)


class Precision(_Precision, metaclass=_Plugin):
    """The precision "32-true", and the base class of precisions of one's own. `isinstance` is true of every precision.

    Args:
        *args, **kwargs: As in the class that a subclass derives from.
    """

    is_plugin: ClassVar[bool] = True
    never_called: ClassVar[Iterable[str]] = uncalled()["plugins.Precision"]
    names: ClassVar[Sequence[str]] = ("32-true",)
    """The precisions that it may be, the default first."""

    _own: _Precision = _Precision()
    strategy: Any = None
    _native: Callable[..., Any] | None = None
    _is_within = False  # a backward: what it differentiates is scaled
    _differentiate: Callable[[Tensor], Any] | None = None
    _precision: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._own = type(self).make(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        translate_overrides(cls, OF_PRECISIONS)

    def __getattr__(self, name: str) -> Any:
        if name != "scaler":
            return getattr(self._own, name)
        if not hasattr(self._own, "scale_loss"):
            return None
        trainer = getattr(self.strategy, "trainer", None)
        return self._own if trainer is None else trainer.scaler

    @classmethod
    def make(
        cls, precision: Any = None, device: str | None = None, scaler: GradScaler | None = None, use_cpu: bool = False
    ) -> _Precision:
        """Return it.

        Args:
            precision: One of `names`, or for a mixed one 16 or "bf16".
            device: The type of the device, of a mixed precision; None is CUDA, if it is available.
            scaler: For "16-mixed" a scaler of torch's, whose settings are taken; one that is off scales nothing.
            use_cpu: Whether the device is the CPU, as up to 1.9.

        Raises:
            ValueError: If it is no such precision, or a scaler is given for one without.
        """
        device = "cpu" if use_cpu else device or ("cuda" if torch.cuda.is_available() else "cpu")
        device_type = str(device).partition(":")[0]
        chosen = choose_precision(cls.names[0] if precision is None else precision, device_type)
        if chosen.name not in cls.names:
            rule, action = " or ".join(map(repr, cls.names)), "Pass `Trainer(precision=...)` for another."
            raise ValueError(must_be("precision", rule, precision, cls.__name__, action))
        if scaler is not None and not isinstance(chosen, ScaledPrecision):
            raise ValueError(must_be("scaler", f"left out for {chosen.name!r}", scaler, cls.__name__, "Leave it out."))
        return chosen if scaler is None else _scaled_by(scaler, device_type)

    name = _delegated("name", "The name that `choose_precision` takes.")
    param_dtype = _delegated("param_dtype", "The dtype of parameters; None keeps each as it was made.")
    autocast_dtype = _delegated("autocast_dtype", "The dtype of autocast; None without autocast.")
    has_skipped_step = _delegated("has_skipped_step", "Whether the latest step of an optimizer was skipped.")
    setup_optimizer = _delegated("setup_optimizer", "Makes an optimizer step in this precision.")
    state_dict = _delegated("state_dict", "Returns the state, such as the loss scale.")
    load_state_dict = _delegated("load_state_dict", "Restores the state.")
    agree = _delegated(
        "agree", "Takes whether gradients of this rank overflowed, as a tensor; see `camshaft.strategies.precision`."
    )

    @settable
    def precision(self) -> Any:
        """The `name`, unless a subclass has set another."""
        return self._precision or self.name

    # what subclasses override, and what calls it

    def convert_module(self, module: nn.Module) -> Any:
        """Bring a module's floating-point parameters and buffers into `param_dtype`, in place, and return it."""
        self._own.convert_module(module)
        return module

    def connect(self, model: nn.Module, optimizers: list[Any], lr_schedulers: list[Any]) -> tuple[Any, Any, Any]:
        """Return the module, which a subclass may change in place; there are no optimizers yet."""
        return model, optimizers, lr_schedulers

    def convert_input(self, data: Any) -> Any:
        """Return a batch in the format of the parameters, if there is one for all."""
        dtype = self._own.param_dtype
        if dtype is None:
            return data
        is_float = lambda leaf: isinstance(leaf, Tensor) and leaf.is_floating_point()  # noqa: E731
        return map_nested(data, is_float, lambda leaf: leaf.to(dtype))

    def convert_output(self, data: Any) -> Any:
        """Return what a step returned as it is."""
        return data

    def autocast_context_manager(self) -> Any:
        """Return the context of mixed precision."""
        own: Any = self._own
        return torch.autocast(own.device_type, own.autocast_dtype, cache_enabled=False)

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Enter autocast, or make the format of the parameters that of new tensors."""
        with ExitStack() as stack:
            if self._own.autocast_dtype is not None:
                stack.enter_context(self.autocast_context_manager())
            elif self._own.param_dtype is not None:
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(self._own.param_dtype)
            yield

    def train_step_context(self) -> Any:
        """Return the context of a training step; likewise the other three."""
        return self.forward_context()

    val_step_context = test_step_context = predict_step_context = train_step_context

    def wrap_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that computes in this precision, in the contexts that a subclass has."""
        if not any(is_overridden(self, name) for name in _OF_STEPS):
            return self._own.wrap_step(step)
        name = getattr(step, "__name__", "").replace("training", "train").replace("validation", "val")
        context = getattr(self, f"{name}_context" if f"{name}_context" in _OF_STEPS else "forward_context")

        def run(*args: Any, **kwargs: Any) -> Any:
            if args:
                args = (self.convert_input(args[0]), *args[1:])
            with context():
                return step(*args, **kwargs)

        return run

    def backward(self, tensor: Tensor, model: Any = None, optimizer: Any = None, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Differentiate a loss; from an override one that is scaled already.

        Args:
            tensor: The loss.
            model: The module; or the function that differentiates.
            optimizer: The optimizer, which is not needed.
            args, kwargs: Arguments of `Tensor.backward`.
        """
        differentiate = kwargs.pop("differentiate", None) or function_or_none(model)
        if not self._is_within:
            self.native_backward(tensor, differentiate, None)
        elif self._differentiate is not None:
            self._differentiate(tensor)
        else:
            tensor.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def native_backward(self, loss: Tensor, differentiate: Any, override: Callable[..., Any] | None) -> None:
        """Differentiate a loss, scaled if need be, by an override, between `pre_backward` and `post_backward`.

        Args:
            loss: The loss.
            differentiate: What differentiates it; None for `loss.backward()`.
            override: The override of `backward`, if any.
        """
        if override is None and not any(is_overridden(self, name) for name in ("pre_backward", "post_backward")):
            self._own.backward(loss, differentiate)
            return
        arguments = self.arguments_of_backward()
        called = Precision.backward if override is None else override

        def within(scaled: Tensor) -> None:
            scaled = self.pre_backward(scaled, arguments[0])
            called(self, scaled, *arguments)
            self.post_backward(scaled, arguments[0])

        outer = self._is_within, self._differentiate
        self._is_within, self._differentiate = True, differentiate
        try:
            self._own.backward(loss, within)
        finally:
            self._is_within, self._differentiate = outer

    def arguments_of_backward(self) -> tuple[Any, ...]:
        """Return what an override of `backward` gets beside the loss: the module, and the optimizer if it is one."""
        if self.strategy is None:
            return None, None
        return self.strategy.lightning_module, *self.strategy.arguments_of_backward()

    def pre_backward(self, tensor: Tensor, module: Any) -> Tensor:
        """Return the loss; called before a backward."""
        return tensor

    def post_backward(self, tensor: Tensor, module: Any) -> Tensor:
        """Return the loss; called after a backward."""
        return tensor

    @contextmanager
    def within(self, native: Callable[..., Any]) -> Iterator[None]:
        """Call an override while the base of the method is a strategy's own."""
        outer, self._native = self._native, native
        try:
            yield
        finally:
            self._native = outer

    def optimizer_step(self, optimizer: Optimizer, model: Any = None, closure: Any = None) -> Any:
        """Update the weights."""
        own = () if closure is None or isinstance(closure, Done) else (closure,)
        return optimizer.step(*own) if self._native is None else self._native(optimizer, *own)

    def _wrap_closure(self, model: Any, optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
        """Return what the closure returns."""
        return closure()

    def _after_closure(self, model: Any, optimizer: Optimizer) -> None:
        """Do nothing: `on_before_optimizer_step` was called, and gradients are clipped."""

    def clip_gradients(self, optimizer: Any, clip_val: float = 0.0, gradient_clip_algorithm: Any = "norm") -> None:
        """Clip an optimizer's gradients by `clip_grad_by_value` or `clip_grad_by_norm`."""
        is_by_value = getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm) == "value"
        clip = self.clip_grad_by_value if is_by_value else self.clip_grad_by_norm
        if clip_val > 0:
            clip(optimizer, clip_val)

    def clip_grad_by_value(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip gradients by their values."""
        if self._native is None:
            torch.nn.utils.clip_grad_value_(list(self.main_params(optimizer)), clip_val)
        else:
            self._native(optimizer, clip_val, "value")

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip gradients by their norm."""
        if self._native is None:
            torch.nn.utils.clip_grad_norm_(list(self.main_params(optimizer)), clip_val)
        else:
            self._native(optimizer, clip_val, "norm")

    def main_params(self, optimizer: Optimizer) -> Iterable[Tensor]:
        """Return the parameters of an optimizer."""
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def tensor_init_context(self) -> Any:
        """Return a context that does nothing: modules are converted when they are set up."""
        return nullcontext()

    module_init_context = tensor_init_context

    def unscale(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, unless that is done."""
        self._own.unscale(optimizer)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Unscale an optimizer's gradients, unless that is done."""
        self.unscale(optimizer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Do nothing: `state_dict` is saved."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Do nothing: `load_state_dict` gets the state."""

    def release(self) -> None:
        """Restore the optimizers, and end."""
        self._own.release()
        self.teardown()

    def teardown(self) -> None:
        """Do nothing; called when a verb ends."""


class MixedPrecision(Precision):
    """Autocast, with a gradient scaler for float16."""

    __stands_for__: ClassVar[type] = AutocastPrecision
    names = ("16-mixed", "bf16-mixed")


class HalfPrecision(Precision):
    """Everything in float16, or bfloat16."""

    __stands_for__: ClassVar[type] = TruePrecision
    names = ("16-true", "bf16-true")


class DoublePrecision(Precision):
    """Everything in float64."""

    __stands_for__: ClassVar[type] = TruePrecision
    names = ("64-true",)


class FSDPPrecision(Precision):
    """A precision for sharded training, by its name; the second argument is the scaler."""

    __stands_for__: ClassVar[type] = _Precision
    names = PRECISIONS

    @classmethod
    def make(cls, precision: Any = None, scaler: Any = None) -> _Precision:  # type: ignore[override]
        """Return it, with the settings of a scaler for "16-mixed"."""
        return super().make(precision, scaler=scaler)


def _scaled_by(scaler: GradScaler, device_type: str) -> _Precision:
    """Return the precision that scales as a scaler is set, or does not scale if it is switched off."""
    if not scaler.is_enabled():
        unscaled = AutocastPrecision(device_type, torch.float16)
        unscaled.name = "16-mixed"
        return unscaled
    if type(scaler).__name__ not in ("GradScaler", "ShardedGradScaler"):
        warn_user(
            f"Settings of {type(scaler).__qualname__} are taken, and its methods are not called. Override those of a "
            "precision to change how losses are scaled."
        )
    names = ("growth_factor", "backoff_factor", "growth_interval")
    settings = {name: getattr(scaler, f"get_{name}")() for name in names}
    return ScaledPrecision(device_type, init_scale=scaler.get_scale(), **settings)


def view_of(precision: _Precision, strategy: Any) -> Precision:
    """Return a precision of ours with the methods of Lightning's; one of the user's own as it is.

    Args:
        precision: The precision.
        strategy: Its strategy.
    """
    if isinstance(precision, Precision) and hasattr(precision, "is_plugin"):
        return precision
    kinds: tuple[Any, ...] = (MixedPrecision, HalfPrecision, DoublePrecision)
    kind = next((kind for kind in kinds if precision.name in kind.names), Precision)
    view: Precision = object.__new__(kind)
    view._own, view.strategy = precision, strategy
    return view
