"""Conditions on which the order of a life cycle depends, and the variations of a run that make them true."""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """State on which the order of a life cycle depends. All conditions are false at the beginning."""

    SKIPPED = "the batch's start hook returned -1"
    NO_LOSS = "`training_step` returned None"
    HELD = "gradients are held by an open accumulation window"
    SOME_HELD = "gradients of only some optimizers are held"
    ANY_LOSS = "`training_step` returned a loss for an optimizer"
    ANY_NO_LOSS = "`training_step` returned None for an optimizer"
    NOTHING_APPLIED = "the optimizer had no gradients to apply"
    RESUMED = "the run goes on from a checkpoint"
    MOVED = "the batch was moved to its device before its start hook"


class Variation(StrEnum):
    """A departure from the ordinary run: one optimizer, one update a batch, and a loss in each."""

    ACCUMULATION = "accumulation"
    OPTIMIZERS = "optimizers"
    SPLITS = "splits"
    SKIPPED_LOSSES = "skipped-losses"
    SANITY_CHECK = "sanity-check"
    RARE = "rare"
    """Everything else, such as reloaded loaders, closures that are evaluated again, or a batch that ends its epoch."""


VARIATION_OF = {
    **dict.fromkeys((Condition.HELD, Condition.SOME_HELD), Variation.ACCUMULATION),
    **dict.fromkeys((Condition.NO_LOSS, Condition.ANY_LOSS, Condition.ANY_NO_LOSS), Variation.SKIPPED_LOSSES),
    **dict.fromkeys((Condition.SKIPPED, Condition.RESUMED, Condition.MOVED), Variation.RARE),
    Condition.NOTHING_APPLIED: Variation.SKIPPED_LOSSES,
}
"""By condition, the runs in which it may be true."""
