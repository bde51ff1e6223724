"""The stretches of a run that a timeline shows around its hooks, by the hooks where they begin and end."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from camshaft.hooks_core.grammar import Call, If, Maybe, Node, Repeat, Seq, hooks_in, life_cycle
from camshaft.hooks_core.grammar.nodes import parts

OPTIMIZER_STEP = "optimizer.step"
"""The span of an optimizer's update; the optimizer itself says when that begins and ends."""


@attrs.frozen
class Span:
    """One kind of stretch.

    Args:
        name: What it is called.
        opened_by: The hook where it begins.
        closed_by: The hook where it ends.
        lies_between: Whether it begins after the one hook and ends before the other; else it encloses both.
        is_step: Whether it is one batch.
    """

    name: str
    opened_by: str
    closed_by: str
    lies_between: bool = False
    is_step: bool = False


def _evaluation(word: str) -> tuple[Span, Span]:
    return (
        Span(word, f"on_{word}_start", f"on_{word}_end"),
        Span(f"{word} batch", f"on_{word}_batch_start", f"on_{word}_batch_end", is_step=True),
    )


SANITY_CHECK = Span("sanity check", "on_sanity_check_start", "on_sanity_check_end")
TRAINING_BATCH = Span("training batch", "on_train_batch_start", "on_train_batch_end", is_step=True)
BACKWARD_PASS = Span("backward pass", "on_before_backward", "on_after_backward", lies_between=True)
SPANS = (
    SANITY_CHECK,
    Span("training", "on_train_start", "on_train_end"),
    Span("training epoch", "on_train_epoch_start", "on_train_epoch_end"),
    TRAINING_BATCH,
    BACKWARD_PASS,
    *_evaluation("validation"),
    *_evaluation("test"),
    *_evaluation("predict"),
)
EDGES = tuple(hook for span in SPANS for hook in (span.opened_by, span.closed_by))
"""Hooks that must be called for the spans to be seen."""


def span_of(group: Node) -> Span | None:
    """The span that a part of a life cycle is: the one whose first hook is directly in it."""
    if not isinstance(group, Repeat | Maybe) or isinstance(group.body, Call):
        return None
    spans = (
        span for hook in _direct_hooks(group.body) for span in SPANS if span.opened_by == hook and not span.lies_between
    )
    return next(spans, None)


def hooks_of_step(span: Span) -> tuple[str, ...]:
    """The hooks and inner spans that belong to each batch of a kind, up to the hook by which it ends."""
    verbs = ("fit",) if span is TRAINING_BATCH else ("validate", "test", "predict")
    found = (node for verb in verbs for node in _groups(life_cycle(verb)) if span_of(node) is span)
    body = next(found)
    hooks = list(dict.fromkeys(hooks_in(body)))
    hooks = hooks[: hooks.index(span.closed_by) + 1]
    if span is TRAINING_BATCH:
        hooks += [BACKWARD_PASS.name, OPTIMIZER_STEP]
    return tuple(hooks)


def _groups(node: Node) -> Iterator[Node]:
    if isinstance(node, Repeat):
        yield node
    for part in parts(node):
        yield from _groups(part)


def _direct_hooks(node: Node) -> Iterator[str]:
    match node:
        case Call(hook=hook):
            yield hook
        case Seq(items=items):
            for item in items:
                yield from _direct_hooks(item)
        case Maybe(body=Call(hook=hook)) | If(body=Call(hook=hook)):
            yield hook
