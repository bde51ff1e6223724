"""Specification of a hook, and the decorator by which a method of a base class states it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal, TypeVar, get_args

import attrs

Kind = Literal["event", "step", "override", "provide", "transform", "state"]
"""What a hook is for; see `HookSpec`."""
Stage = Literal["setup", "data", "fit", "train", "validate", "test", "predict", "checkpoint", "exception"]
"""The part of a run to which a hook belongs."""
Verb = Literal["fit", "validate", "test", "predict"]
"""What a trainer is told to do."""

_Method = TypeVar("_Method", bound=Callable[..., Any])

ZeroGrad = Literal["before_training_step", "before_backward", "after_optimizer_step"]
"""Place where gradients are zeroed; camshaft's own is before backward."""

STAGES: tuple[Stage, ...] = get_args(Stage)
"""All stages."""
VERBS: tuple[Verb, ...] = get_args(Verb)
"""All verbs."""
ZERO_GRADS: tuple[ZeroGrad, ...] = get_args(ZeroGrad)
"""All places where gradients may be zeroed."""

UNORDERED_KINDS: tuple[Kind, ...] = ("provide", "state")
"""Kinds of hooks that may be called at any time."""

SKIP_EPOCH = -1
"""Result of `on_train_batch_start` that skips the rest of the epoch."""


class Receiver(StrEnum):
    """Kind of object that may implement a hook."""

    CALLBACK = "callback"
    DATA = "data"
    MODULE = "module"
    STRATEGY = "strategy"


def kind_in_words(kind: Receiver) -> str:
    """Return the name of a kind of receiver in a sentence."""
    return "data module" if kind is Receiver.DATA else str(kind)


@attrs.frozen
class HookSpec:
    """Specification of a hook: name, receivers, arguments and moment of its call.

    Args:
        name: The method's name.
        when: The moment of the call, as a sentence.
        receivers: Kinds of objects that may implement it, in the order in which they are called.
        parameters: The arguments' names as a module gets them, without `self`. A callback gets `trainer` and `module`
            before them if `kind` is "event", or `trainer` alone where there is no module yet.
        kind: "event" is called on every receiver that implements it; "step" is the module's own computation;
            "override" replaces a default of the loop; "provide" returns something that the run needs, from the first
            receiver that implements it; "transform" passes a batch through; "state" saves or loads a receiver's state.
        stage: The part of a run that it belongs to.
        returns: What the return value means. The default says that it is ignored.
        optional: The names of further arguments, which only a function gets whose signature names them.
        isolated: Whether every receiver is called even if one before it raises; the first error is raised at the end.
        precedes_module: Whether it is called before there is a module, so that a callback gets the trainer alone.
    """

    name: str
    when: str
    receivers: tuple[Receiver, ...]
    parameters: tuple[str, ...] = ()
    kind: Kind = "event"
    stage: Stage = "fit"
    returns: str = "ignored"
    optional: tuple[str, ...] = ()
    isolated: bool = False
    precedes_module: bool = False

    @property
    def can_skip_epoch(self) -> bool:
        """True if a return value of -1 skips the rest of the epoch."""
        return self.returns.startswith("-1")


@attrs.frozen
class HookPlace:
    """Place of a registered hook in the life cycles: beside another hook, wherever that stands.

    Args:
        moment: "before" or "after" the calls of all receivers of the other hook; or "within" the call of each, where
            the receiver itself calls the registered hook, at most once if one of several does so.
        hook: The other hook's name.
        times: Number of calls in that place: "once", "at_most_once" or "any".
    """

    moment: Literal["before", "after", "within"] = attrs.field(
        validator=attrs.validators.in_(("before", "after", "within"))
    )
    hook: str
    times: Literal["once", "at_most_once", "any"] = attrs.field(
        default="once", validator=attrs.validators.in_(("once", "at_most_once", "any"))
    )


def hook(*receivers: Receiver, when: str = "", kind: Kind = "event", **facts: Any) -> Callable[[_Method], _Method]:
    """State a hook by a documented method of a base class; `spec_of` returns the statement.

    The hook has the method's name. Its parameters are those of the method, without `self`; keyword-only ones are its
    optional arguments.

    Args:
        receivers: Kinds of objects that may implement it, in the order in which they are called.
        when: The moment of the call. The default is the first paragraph of the method's docstring; if the method
            computes something, that paragraph may be an imperative ("Zero the gradients."), and "To" goes before it.
        kind, facts: See `HookSpec`.

    Returns:
        A decorator that returns the method itself.
    """

    def state(method: _Method) -> _Method:
        code = method.__code__
        count = code.co_argcount
        method.__hook__ = HookSpec(  # type: ignore[attr-defined]
            name=method.__name__,
            when=when or _moment(method.__doc__ or "", kind),
            receivers=receivers,
            # read from the code: `inspect.signature` takes ten times as long, for all hooks milliseconds at each start
            parameters=code.co_varnames[1:count],
            optional=code.co_varnames[count : count + code.co_kwonlyargcount],
            kind=kind,
            **facts,
        )
        return method

    return state


def _moment(docstring: str, kind: Kind) -> str:
    summary = " ".join(docstring.partition("\n\n")[0].split())
    if kind in ("event", "provide", "state") or summary.startswith(("After ", "Before ", "When ")):
        return summary
    return f"To {summary[:1].lower()}{summary[1:]}"


def spec_of(method: object) -> HookSpec | None:
    """Return the specification that a method of a base class carries by `hook`, or None."""
    return getattr(method, "__hook__", None)
