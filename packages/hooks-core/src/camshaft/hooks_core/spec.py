"""What a hook is: the record that everything else is derived from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import attrs

Kind = Literal["event", "step", "override", "provide", "transform", "state"]
Stage = Literal["setup", "data", "fit", "train", "validate", "test", "predict", "checkpoint", "exception"]
Verb = Literal["fit", "validate", "test", "predict"]

ZeroGrad = Literal["before_training_step", "before_backward", "after_optimizer_step"]
"""Where gradients are zeroed: where the document of 2.x has it, after `training_step` (camshaft's own place and that of
0.7 and 2.0), or where 0.5 and 0.8 have it."""

VERBS: tuple[Verb, ...] = ("fit", "validate", "test", "predict")

ZERO_GRADS: tuple[ZeroGrad, ...] = ("before_training_step", "before_backward", "after_optimizer_step")

ERAS = ("0.5", "0.7", "0.8", "2.0", "2.x")
"""The eras that the specification documents describe, oldest first."""

MODULE_ONLY_ERAS = ("0.5", "0.7", "0.8")
"""Eras whose documents know hooks of the module alone."""

SKIP_EPOCH = -1
"""What `on_train_batch_start` returns to skip the rest of the epoch."""


class Receiver(StrEnum):
    """Who may implement a hook."""

    CALLBACK = "callback"
    DATA = "data"
    MODULE = "module"
    STRATEGY = "strategy"


@attrs.frozen
class HookSpec:
    """One hook: its name, who may implement it, with which arguments, and when it is called.

    Args:
        name: The method's name.
        when: The moment of the call, as a sentence.
        receivers: Who may implement it, in the order in which they are called.
        parameters: The arguments' names as a module gets them, without `self`. A callback gets `trainer` and `module`
            before them if `kind` is "event".
        optional: The names of further arguments, which only a function gets whose signature names them.
        kind: "event" is called on every receiver that implements it; "step" is the module's own computation;
            "override" replaces a default of the loop; "provide" returns something that the run needs, from the first
            receiver that implements it; "transform" passes a batch through; "state" saves or loads a receiver's memory.
        stage: The part of a run that it belongs to.
        returns: What the return value means. The default says that it is ignored.
        eras: The eras that know it, oldest first.
        signatures: The parameters in the eras where they differ from `parameters`.
        isolated: Whether every receiver is called even if one before it raises; the first error is raised at the end.
        today: The name of today's moment, for a hook that no present era has. None for hooks of today and for those
            without a counterpart.
        kept: Whether it runs today although no document of the present eras has it.
    """

    name: str
    when: str
    receivers: tuple[Receiver, ...]
    parameters: tuple[str, ...] = ()
    kind: Kind = "event"
    stage: Stage = "fit"
    returns: str = "ignored"
    eras: tuple[str, ...] = ("2.0", "2.x")
    signatures: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    isolated: bool = False
    today: str | None = None
    optional: tuple[str, ...] = ()
    kept: bool = False

    def parameters_in(self, era: str | None) -> tuple[str, ...]:
        """The parameter names in an era; None stands for today."""
        return self.parameters if era is None else self.signatures.get(era, self.parameters)

    def optional_in(self, era: str | None) -> tuple[str, ...]:
        """The optional parameter names in an era; None stands for today, and the documents of the eras know none."""
        return self.optional if era is None else ()

    def receivers_in(self, era: str | None) -> tuple[Receiver, ...]:
        """The receivers in an era; the documents of the eras before 2.0 describe modules only."""
        if era in MODULE_ONLY_ERAS:
            return (Receiver.MODULE,)
        return self.receivers

    @property
    def is_current(self) -> bool:
        """Whether today's loops call it."""
        return self.kept or "2.x" in self.eras

    @property
    def can_skip_epoch(self) -> bool:
        """Whether a return value of -1 skips the rest of the epoch."""
        return self.returns.startswith("-1")
