"""Names of states and stages, as enumerations of earlier releases."""

from __future__ import annotations

from enum import Enum


class LightningEnum(str, Enum):  # noqa: UP042
    """An enumeration whose members equal their values, in upper or lower case."""

    @classmethod
    def from_str(cls, value: str) -> LightningEnum | None:
        """The member of that name or value; None if there is none."""
        wanted = value.lower()
        return next((member for member in cls if wanted in (member.name.lower(), member.value.lower())), None)

    def __eq__(self, other: object) -> bool:
        other = other.value if isinstance(other, Enum) else other
        return isinstance(other, str) and self.value.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.value.lower())

    def __str__(self) -> str:
        return str(self.value)


class TrainerFn(LightningEnum):
    """The verbs; what `setup` and `teardown` get equals one of these."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"
    TUNING = "tune"


class RunningStage(LightningEnum):
    """The stages of a run."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"
    TUNING = "tune"

    @property
    def evaluating(self) -> bool:
        """Whether it evaluates."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING)


class GradClipAlgorithmType(LightningEnum):
    """How gradients are clipped; members equal the trainer's values."""

    VALUE = "value"
    NORM = "norm"
