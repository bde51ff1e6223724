"""What a run did: every hook with its arguments and what could be seen there, as plain values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SHOWS_METRICS = frozenset(
    {"on_train_batch_end", "on_train_epoch_end", "on_validation_end", "on_test_end", "on_fit_end"}
)


@attrs.frozen
class Call:
    """One receiver's hook was entered.

    Args:
        receiver: Its name; callbacks are "first", "second" and "monitor".
        hook: The hook.
        arguments: In short, without trainer and module.
        depth: How many recorded calls it is made within.
        seen: What could be seen on entering: epoch, step, modes.
        metrics: `callback_metrics` on entering, for callbacks in the hooks of `SHOWS_METRICS`.
    """

    receiver: str
    hook: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    depth: int = 0
    seen: Mapping[str, Any] = attrs.field(factory=dict)
    metrics: Mapping[str, float] | None = None

    def __str__(self) -> str:
        parts = [f"{self.receiver}.{self.hook}", f"{dict(self.arguments)}", f"depth {self.depth}", f"{dict(self.seen)}"]
        return "  ".join([*parts, *([] if self.metrics is None else [f"{dict(sorted(self.metrics.items()))}"])])


@attrs.define
class Recording:
    """Everything about a run that is compared.

    Args:
        calls: The hooks, in order.
        weights: The module's parameters and buffers at the end.
        progress: `current_epoch` and `global_step` after each verb.
        callback_metrics: At the end of each verb.
        rows: That each verb added to the CSV files.
        returned: By each verb.
        checkpoints: What is in each file, by its name.
        loading: How often each loader was iterated over in each verb, and the epochs that its sampler was told.
        raised: What a verb raised.
    """

    calls: list[Call] = attrs.field(factory=list)
    weights: dict[str, Tensor] = attrs.field(factory=dict)
    progress: list[dict[str, int]] = attrs.field(factory=list)
    callback_metrics: list[dict[str, float]] = attrs.field(factory=list)
    rows: list[list[dict[str, float]]] = attrs.field(factory=list)
    returned: list[Any] = attrs.field(factory=list)
    checkpoints: dict[str, Any] = attrs.field(factory=dict)
    loading: list[dict[str, Any]] = attrs.field(factory=list)
    raised: list[str] = attrs.field(factory=list)


class Recorder:
    """Makes classes whose instances record their hooks.

    Args:
        recording: Where to.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._depth = 0
        self.trainer: Any = None
        self.module: nn.Module | None = None

    def recorded(
        self,
        base: type,
        receiver: str,
        hooks: Mapping[str, tuple[str, ...]],
        form: str = "named",
        formed: Container[str] = (),
    ) -> Any:
        """A subclass that records hooks, and then does what `base` does.

        Args:
            base: The class.
            receiver: The name under which it records.
            hooks: Each hook's parameters, without `self`; those from `dataloader_idx` on may be left out by callers.
            form: How the hooks in `formed` take their arguments, see `Configuration.signatures`.
            formed: The hooks that do not take them by name.
        """
        methods = {
            name: self._method(base, receiver, name, parameters, form if name in formed else "named")
            for name, parameters in hooks.items()
        }
        return type(base.__name__, (base,), methods)

    def _method(
        self, base: type, receiver: str, name: str, parameters: tuple[str, ...], form: str
    ) -> Callable[..., Any]:
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    parameter,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=0 if parameter == "dataloader_idx" else inspect.Parameter.empty,
                )
                for parameter in ("self", *parameters)
            ]
        )
        default = getattr(base, name, None)

        def method(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            if form == "named":
                bound.apply_defaults()
            arguments = {key: value for key, value in bound.arguments.items() if key not in _HIDDEN}
            self._recording.calls.append(self._call(receiver, name, arguments))
            self._depth += 1
            try:
                return None if default is None else default(*args, **kwargs)
            finally:
                self._depth -= 1

        return _in_form(method, form, name, signature)

    def _call(self, receiver: str, name: str, arguments: Mapping[str, Any]) -> Call:
        trainer, module = self.trainer, self.module
        assert module is not None
        seen = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "sanity": trainer.sanity_checking,
            "training": module.training,
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "has_gradients": any(parameter.grad is not None for parameter in module.parameters()),
        }
        shows = name in SHOWS_METRICS and receiver in ("first", "second", "monitor")
        metrics = as_numbers(trainer.callback_metrics) if shows else None
        return Call(receiver, name, {key: summary(arguments[key]) for key in arguments}, self._depth, seen, metrics)


_HIDDEN = ("self", "trainer", "module", "pl_module")


def _in_form(method: Callable[..., Any], form: str, name: str, signature: inspect.Signature) -> Callable[..., Any]:
    """The method as a function that takes its arguments in the form."""
    if form == "args":

        def formed(self: Any, *args: Any) -> Any:
            return method(self, *args)

    elif form == "rest":

        def formed(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            return method(self, first, *args, **kwargs)

    elif form == "decorated":

        def named(self: Any) -> None:
            """Stands for a function with the parameters."""

        named.__signature__ = signature  # type: ignore[attr-defined]

        @functools.wraps(named)
        def formed(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        del formed.__signature__  # type: ignore[attr-defined]
    else:
        formed = method
        formed.__signature__ = signature  # type: ignore[attr-defined]
    formed.__name__ = name
    return formed


def as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as Python numbers."""
    return {name: float(value) for name, value in metrics.items()}


def summary(value: Any) -> Any:
    """An argument or result as plain values, equal where both frameworks mean the same."""
    if isinstance(value, Tensor):
        facts = "with graph" if value.grad_fn is not None else "plain"
        return ("tensor", str(value.dtype), facts, value.tolist())
    if isinstance(value, Mapping):
        if "state_dict" in value and "epoch" in value:
            return ("checkpoint", value["epoch"], value["global_step"])
        return {key: summary(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [summary(item) for item in value]
    if isinstance(value, Optimizer):
        name = type(value).__name__.removeprefix("Lightning")  # which wraps some that it hands out
        return "NoOptimizer" if name == "_MockOptimizer" else name
    if isinstance(getattr(value, "optimizer", None), Optimizer):
        return ("scheduler", type(value).__name__)
    if isinstance(value, BaseException):
        return repr(value)
    if isinstance(value, str):
        return str(value.value) if hasattr(value, "value") else value
    if isinstance(value, torch.device):
        return value.type
    if value is None or isinstance(value, bool | int | float):
        return value
    return "function" if callable(value) else type(value).__name__.removeprefix("Lightning")


def parameters_of(
    names: Iterable[str], catalogue: Mapping[str, Any], *, is_callback: bool
) -> dict[str, tuple[str, ...]]:
    """The parameters of hooks, as the receivers of a kind get them."""
    before = ("trainer", "pl_module") if is_callback else ()
    return {name: (*before, *catalogue[name].parameters) for name in names}
