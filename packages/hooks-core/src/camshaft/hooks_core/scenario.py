"""What the conformance kit makes a trainer run, as data."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from camshaft.hooks_core.spec import Verb, ZeroGrad

FEATURES = {
    "validation": "validates after an epoch's last batch",
    "mid_epoch_validation": "validates within an epoch, every `val_check_interval` batches",
    "sanity_check": "runs a few validation batches before training",
    "accumulation": "updates once every `accumulate_grad_batches` batches",
    "skip_epoch": "ends an epoch's batches where `on_train_batch_start` returns -1",
    "skip_update": "goes on to the next batch where `training_step` returns None",
    "optimizer_step": "lets the module override `optimizer_step` and hands it a closure",
    "exceptions": "calls `on_exception` and `teardown` when a hook raises, and raises the same exception",
}
"""What a trainer may be able to do beside running a verb, by name."""

_STAGE_WORDS = {"fit": "train", "validate": "validation", "test": "test", "predict": "predict"}


def _features(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen(kw_only=True)
class Scenario:
    """One run that a trainer has to do exactly as told.

    Args:
        name: Its name.
        verb: "fit", "validate", "test" or "predict".
        description: What it tries, in words.
        features: The names of the features that it needs; see `FEATURES`.
        num_epochs: Training epochs to run.
        num_batches: Batches of each training epoch, or of the only epoch of another verb.
        num_val_batches: Batches of each validation inside fit; 0 runs none.
        val_check_interval: Validate after every so many training batches; None: after an epoch's last.
        num_sanity_val_batches: Batches of the sanity check; 0 runs none.
        accumulate_grad_batches: Batches whose gradients make one update.
        skip_at: `on_train_batch_start` returns -1 at this batch of the first epoch.
        no_loss_at: `training_step` returns None at this batch of each epoch.
        raise_in: A callback raises in this hook, the first time that it is called.
        override: Names of the overrides whose default is recorded as if the module had them.
    """

    name: str
    verb: Verb
    description: str
    features: frozenset[str] = attrs.field(default=frozenset(), converter=_features)
    num_epochs: int = 1
    num_batches: int = 3
    num_val_batches: int = 0
    val_check_interval: int | None = None
    num_sanity_val_batches: int = 0
    accumulate_grad_batches: int = 1
    skip_at: int | None = None
    no_loss_at: int | None = None
    raise_in: str | None = None
    override: tuple[str, ...] = ()

    def expected_counts(self, zero_grad: ZeroGrad | None = None) -> dict[str, int]:
        """How often each of the hooks that tell runs apart must be called on a receiver; empty if the run raises.

        Args:
            zero_grad: Where the trainer zeroes gradients; None means "before_backward".
        """
        if self.raise_in is not None:
            return {}
        if self.verb != "fit":
            return _around_run(self.verb) | _stage_counts(_STAGE_WORDS[self.verb], 1, self.num_batches)
        num_skipped = 0 if self.skip_at is None else self.num_batches - self.skip_at
        num_run = self.num_epochs * self.num_batches - num_skipped
        num_losses = num_run - (0 if self.no_loss_at is None else self.num_epochs)
        num_updates = self._num_updates(num_losses)
        opens_without_loss = zero_grad == "before_training_step"  # a window is zeroed before its first step's outcome
        num_windows = self._num_updates(num_run) if opens_without_loss else num_updates
        num_validations = self._num_validations()
        num_val_batches = num_validations * self.num_val_batches + self.num_sanity_val_batches
        num_val_runs = num_validations + (1 if self.num_sanity_val_batches else 0)
        return {
            **_around_run("fit"),
            "on_train_start": 1,
            "on_train_epoch_start": self.num_epochs,
            "on_train_batch_start": num_run + (0 if self.skip_at is None else 1),
            "training_step": num_run,
            "on_before_zero_grad": num_windows,
            "on_before_backward": num_losses,
            "on_after_backward": num_losses,
            "on_before_optimizer_step": num_updates,
            "on_train_batch_end": num_run,
            "on_train_epoch_end": self.num_epochs,
            "on_train_end": 1,
            "on_sanity_check_start": 1 if self.num_sanity_val_batches else 0,
            "on_sanity_check_end": 1 if self.num_sanity_val_batches else 0,
            **_stage_counts("validation", num_val_runs, num_val_batches),
        }

    def _num_updates(self, num_losses: int) -> int:
        if self.accumulate_grad_batches == 1:
            return num_losses
        return self.num_epochs * -(-self.num_batches // self.accumulate_grad_batches)  # a short last window counts

    def _num_validations(self) -> int:
        if not self.num_val_batches:
            return 0
        return self.num_epochs * (self.num_batches // (self.val_check_interval or self.num_batches))


def _around_run(verb: str) -> dict[str, int]:
    around = {"prepare_data": 1, "setup": 1, "configure_sharded_model": 1, "configure_model": 1, "teardown": 1}
    return around | ({"on_fit_start": 1, "on_fit_end": 1} if verb == "fit" else {}) | {"on_exception": 0}


def _stage_counts(word: str, num_runs: int, num_batches: int) -> dict[str, int]:
    per_run = {f"on_{word}_{moment}": num_runs for moment in ("start", "epoch_start", "epoch_end", "end")}
    per_batch = {f"on_{word}_batch_start": num_batches, f"on_{word}_batch_end": num_batches}
    return per_run | per_batch | {f"{word}_step": num_batches}


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="fit", verb="fit", description="one epoch of training"),
    Scenario(name="fit-epochs", verb="fit", description="several epochs", num_epochs=3, num_batches=2),
    Scenario(
        name="fit-validation",
        verb="fit",
        description="validation after each epoch's last batch",
        features=("validation",),
        num_epochs=2,
        num_val_batches=2,
    ),
    Scenario(
        name="fit-validation-within-epoch",
        verb="fit",
        description="validation in the middle and at the end of an epoch",
        features=("validation", "mid_epoch_validation"),
        num_batches=4,
        num_val_batches=1,
        val_check_interval=2,
    ),
    Scenario(
        name="fit-sanity-check",
        verb="fit",
        description="a few validation batches before training, and validation at its end",
        features=("validation", "sanity_check"),
        num_val_batches=3,
        num_sanity_val_batches=2,
    ),
    Scenario(
        name="fit-accumulation",
        verb="fit",
        description="two batches make one update, and a short last window one more",
        features=("accumulation",),
        num_epochs=2,
        num_batches=5,
        accumulate_grad_batches=2,
    ),
    Scenario(
        name="fit-skip-epoch",
        verb="fit",
        description="-1 from on_train_batch_start ends the first epoch's batches; the second runs whole",
        features=("skip_epoch",),
        num_epochs=2,
        skip_at=1,
    ),
    Scenario(
        name="fit-skip-update",
        verb="fit",
        description="None from training_step skips backward and update of that batch",
        features=("skip_update",),
        no_loss_at=1,
    ),
    Scenario(
        name="fit-optimizer-step",
        verb="fit",
        description="an overridden optimizer_step encloses forward, zeroing and backward",
        features=("optimizer_step",),
        override=("optimizer_step",),
    ),
    Scenario(
        name="fit-exception-in-epoch",
        verb="fit",
        description="a callback raises when the epoch starts",
        features=("exceptions",),
        raise_in="on_train_epoch_start",
    ),
    Scenario(
        name="fit-exception-in-backward",
        verb="fit",
        description="a callback raises between forward and backward",
        features=("exceptions",),
        raise_in="on_before_backward",
    ),
    Scenario(name="validate", verb="validate", description="validation as a verb of its own"),
    Scenario(name="test", verb="test", description="a test"),
    Scenario(name="predict", verb="predict", description="a prediction"),
    *(
        Scenario(
            name=f"{verb}-exception",
            verb=verb,
            description="a callback raises when a batch starts",
            features=("exceptions",),
            raise_in=f"on_{_STAGE_WORDS[verb]}_batch_start",
        )
        for verb in ("validate", "test", "predict")
    ),
)
"""Every scenario of the kit."""
