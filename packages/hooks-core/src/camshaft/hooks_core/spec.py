"""Specification of a hook, and the decorator by which a method of a base class states it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

import attrs

if TYPE_CHECKING:
    from typing import Unpack

Kind = Literal["event", "step", "override", "provide", "transform", "state"]
"""What a hook is for; see `HookSpec`."""
Stage = Literal["setup", "data", "fit", "train", "validate", "test", "predict", "checkpoint", "exception"]
"""The part of a run to which a hook belongs."""
Verb = Literal["fit", "validate", "test", "predict"]
"""What a trainer is told to do."""

_Method = TypeVar("_Method", bound=Callable[..., Any])

ZeroGrad = Literal["before_training_step", "before_backward", "after_optimizer_step"]
"""Place where gradients are zeroed: that of the document of 2.x, after `training_step` (camshaft's own and that of 0.7
and 2.0), or that of 0.5 and 0.8."""

STAGES: tuple[Stage, ...] = get_args(Stage)
"""All stages."""
VERBS: tuple[Verb, ...] = get_args(Verb)
"""All verbs."""
ZERO_GRADS: tuple[ZeroGrad, ...] = get_args(ZeroGrad)
"""All places where gradients may be zeroed."""

ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
"""The eras, oldest first: those that the specification documents describe, and 1.x as it was measured to be."""

EARLIER_ERAS = ("0.5", "0.7", "0.8", "1.x")
"""Eras whose code does not run on today's protocol as it is."""

MODULE_ONLY_ERAS = ("0.5", "0.7", "0.8")
"""Eras whose documents know hooks of the module alone."""

CANONICAL_NAMES = {
    "current_epoch": "epoch",
    "batch_nb": "batch_idx",
    "optimizer_i": "optimizer_idx",
    "second_order_closure": "optimizer_closure",
    "dataloader_i": "dataloader_idx",
    "dataset_idx": "dataloader_idx",
    "proc_rank": "global_rank",
    "pl_module": "module",
    "results": "outputs",
}
"""Names of arguments in earlier eras, with the names of today."""

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
        eras: The eras that know it, oldest first.
        signatures: The parameters in the eras where they differ from `parameters`.
        isolated: Whether every receiver is called even if one before it raises; the first error is raised at the end.
        today: Names of the hooks in whose moments it is called, for a hook that no present era has: hooks of today, or
            what runners of eras call by a later name. Empty for hooks of today and for those without a counterpart.
        optional: The names of further arguments, which only a function gets whose signature names them.
        moments: The same as `today` in the eras, and in the releases of them ("1.1"), where they differ.
        precedes: Whether it comes before the hooks in whose moments it is called; else it follows them.
        fixed: Arguments that only signatures of earlier eras have, with what they are where the hook's caller does not
            pass them.
        condition: When a hook with `today` is called in that moment, as an expression of the arguments of today's hook;
            empty for always.
        optionals: The optional arguments in the eras that have any.
        kept: Whether it runs today although no document of the present eras has it.
        aliases: Arguments of earlier eras that go by name alone, by their names of today, each with the names that
            signatures have for it. Underscores stand for the argument at their place.
        precedes_module: Whether it is called before there is a module, so that a callback gets the trainer alone.
    """

    name: str
    when: str
    receivers: tuple[Receiver, ...]
    parameters: tuple[str, ...] = ()
    kind: Kind = "event"
    stage: Stage = "fit"
    returns: str = "ignored"
    eras: tuple[str, ...] = ("1.x", "2.0", "2.x")
    signatures: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    isolated: bool = False
    today: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    kept: bool = False
    moments: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    fixed: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    condition: str = ""
    precedes: bool = False
    optionals: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    aliases: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    precedes_module: bool = False

    def parameters_in(self, era: str | None) -> tuple[str, ...]:
        """Return the parameter names in an era; None stands for today."""
        return self.parameters if era is None else self.signatures.get(era, self.parameters)

    def optional_in(self, era: str | None) -> tuple[str, ...]:
        """Return the optional parameter names in an era; None stands for today."""
        return self.optional if era is None else self.optionals.get(era, ())

    def receivers_in(self, era: str | None) -> tuple[Receiver, ...]:
        """Return the receivers in an era; the documents of the eras before 1.x describe modules only."""
        if era in MODULE_ONLY_ERAS:
            return (Receiver.MODULE,)
        return self.receivers

    def is_in(self, era: str | None, kind: Receiver) -> bool:
        """Return whether an era has the hook for a kind of receiver; None stands for today."""
        return kind in self.receivers_in(era) and (self.is_current if era is None else era in self.eras)

    def eras_of(self, kind: Receiver) -> tuple[str, ...]:
        """Return the eras that have the hook for a kind of receiver, oldest first."""
        return tuple(era for era in self.eras if kind in self.receivers_in(era))

    def moments_in(self, era: str, version: str | None = None) -> tuple[str, ...]:
        """Return the hooks in whose moments a hook of an earlier era is called.

        Args:
            era: The era.
            version: The release of it, if that is known ("1.1.8").
        """
        release = ".".join((version or "").split(".")[:2])
        return self.moments.get(release, self.moments.get(era, self.today))

    @property
    def is_current(self) -> bool:
        """True if today's loops call it."""
        return self.kept or "2.x" in self.eras

    @property
    def can_skip_epoch(self) -> bool:
        """True if a return value of -1 skips the rest of the epoch."""
        return self.returns.startswith("-1")


class _Facts(TypedDict, total=False):
    """Further facts about a hook, as `HookSpec` has them."""

    stage: Stage
    returns: str
    eras: tuple[str, ...]
    signatures: Mapping[str, tuple[str, ...]]
    isolated: bool
    today: tuple[str, ...]
    kept: bool
    moments: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, Any]
    condition: str
    precedes: bool
    optionals: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, tuple[str, ...]]
    precedes_module: bool


def hook(
    *receivers: Receiver, when: str = "", kind: Kind = "event", **facts: Unpack[_Facts]
) -> Callable[[_Method], _Method]:
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
