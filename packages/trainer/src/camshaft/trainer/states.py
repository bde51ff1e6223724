"""The state of a trainer: which verb and which stage run, and how the last verb ended."""

from __future__ import annotations

from enum import StrEnum

import attrs


class TrainerStatus(StrEnum):
    """Status of a trainer: a verb runs, ended without an error, or was interrupted by one."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    @property
    def stopped(self) -> bool:
        """True if the last verb is over."""
        return self in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)


class TrainerFn(StrEnum):
    """The verbs."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(StrEnum):
    """The stages of verbs; fit is in the stage of training but for the sanity check and its validations."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """True for validation, test and the sanity check."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)


@attrs.frozen
class TrainerState:
    """The state of a trainer at one moment.

    Attributes:
        status: Whether a verb runs, and how the last one ended.
        fn: The current or last verb; None before the first.
        stage: The stage that runs; None outside of verbs.
    """

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    @property
    def finished(self) -> bool:
        """True if the last verb ended without an error."""
        return self.status == TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """True if the last verb is over."""
        return self.status.stopped
