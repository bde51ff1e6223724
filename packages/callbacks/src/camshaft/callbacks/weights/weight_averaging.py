"""Callbacks that average the weights of training, and evaluate the averages."""

from typing import Any, ClassVar

import attrs
import torch

from camshaft.callbacks.arguments import check_not_both, check_number
from camshaft.callbacks.weights.averaged_weights import AveragedWeights
from camshaft.hooks_core import Callback
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import must_be, warn_user

TRAINING_WEIGHTS_KEY = "current_model_state"
"""Key in a checkpoint of the weights of training, if its "state_dict" has the averages. Lightning's name."""

AVERAGING_KEY = "averaging_state"
"""Key in a checkpoint of further state of the averages. Lightning's name."""


@attrs.define(slots=False, eq=False, repr=False)
class WeightAveraging(Callback):
    """Averages the weights of training; validation, and the module after fit, have the averages.

    By default the weights after every update count equally, averaged by torch's `AveragedModel`; see `AveragedWeights`
    for what is averaged. Before the first average, validation and checkpoints have the weights of training
    (Lightning's, those from before training); a fit without any average keeps these, and warns.

    From `on_validation_start` to `on_validation_end` (likewise test and prediction) the module has the averages, so
    logged and monitored values and the best checkpoint are theirs. A full checkpoint holds them as "state_dict", which
    `load_from_checkpoint` and `validate(ckpt_path=...)` read, and beside them the weights of training, from which
    `fit(ckpt_path=...)` resumes exactly. That needs this callback; without it, fit continues from the averages.

    All ranks compute the same averages without communicating; of sharded parameters each averages its parts.

    Args:
        device: Device of the averages, such as "cpu" to save GPU memory. None is that of each weight.
        use_buffers: Whether buffers, such as the statistics of batch normalisation, are averaged as well; otherwise the
            averages have the module's buffers as of the latest average.
        apply_at_end: Whether the module has the averages after fit; otherwise the weights of training.
        avg_fn: Returns a new average: `avg_fn(average, weight, num_averaged)`. Of sharded parameters it gets parts.
        multi_avg_fn: The same for lists, in place: `multi_avg_fn(averages, weights, num_averaged)`.

    Attributes:
        average_model: The averages during and after a fit; None before. `average_model.module.state_dict()` has them by
            name, except while the module has them: then it has the weights of training.

    Raises:
        InvalidArgumentError: If both functions are given.
        ValueError: In fit, if the trainer has another callback that averages weights, or a parameter has no shape yet.
    """

    averages_weights: ClassVar[bool] = True

    device: torch.device | str | int | None = None
    use_buffers: bool = True
    apply_at_end: bool = attrs.field(default=True, kw_only=True)
    avg_fn: Any = attrs.field(default=None, kw_only=True)
    multi_avg_fn: Any = attrs.field(default=None, kw_only=True)
    average_model: AveragedWeights | None = attrs.field(default=None, init=False)
    _start_step: int = attrs.field(default=0, init=False)
    _seen_step: int = attrs.field(default=0, init=False)
    _is_applied: bool = attrs.field(default=False, init=False)  # whether the module has the averages
    _is_evaluating: bool = attrs.field(default=False, init=False)  # whether it has them until the end of an evaluation
    _is_fitting: bool = attrs.field(default=False, init=False)
    _loaded: tuple[dict[str, Any], int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        check_not_both(self, avg_fn=self.avg_fn, multi_avg_fn=self.multi_avg_fn)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to average the weights now; to be overridden. The default is true after every update.

        Args:
            step_idx: Zero-based index of the optimizer update that was made; None at the end of an epoch.
            epoch_idx: Zero-based index of the epoch that has ended; None after an update.
        """
        return step_idx is not None

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Check that no other callback averages weights."""
        self._is_fitting = stage == "fit"
        if self._is_fitting:
            self.average_model = self._loaded = None
            self._is_applied = self._is_evaluating = False
            check_no_other_averaging(self, trainer)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Give the module the weights of training in fit, and keep the averages for `on_fit_start`."""
        self.average_model = None
        if self._is_fitting and TRAINING_WEIGHTS_KEY in checkpoint:
            averages = checkpoint["state_dict"]
            checkpoint["state_dict"] = checkpoint.pop(TRAINING_WEIGHTS_KEY)
            self._loaded = averages, int(checkpoint.get(AVERAGING_KEY, {}).get("n_averaged", 1))

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Allocate the averages, and load those of a checkpoint. Collective if they are sharded."""
        self.average_model = average = AveragedWeights(
            module, self.device, self.avg_fn, self.multi_avg_fn, self.use_buffers, copies_buffers=not self.use_buffers
        )
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            average.load_values(*loaded, trainer.strategy.place_like)

    def on_train_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Start counting updates."""
        self._start_step = self._seen_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: TrainerProtocol, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Average the weights if they were updated and `should_update` is true."""
        step = trainer.global_step
        if step == self._seen_step:
            return
        seen, self._seen_step = self._seen_step, step
        # the splits of a batch make several updates
        is_due = any(self.should_update(step_idx=step_idx) for step_idx in range(seen, step))
        if is_due and self.average_model is not None:
            self.average_model.update_parameters()

    def on_train_epoch_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Average the weights if `should_update` is true for this epoch."""
        if self.average_model is not None and self.should_update(epoch_idx=trainer.current_epoch):
            self.average_model.update_parameters()

    def on_validation_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module the averages, unless it has them since the end of fit."""
        average = self.average_model
        if average is not None and not self._is_applied and average.num_averaged and average.is_of(module):
            self._swap_models(module)
            self._is_applied = self._is_evaluating = True

    def on_validation_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module its own weights back."""
        self._end_evaluation(module)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_train_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module the averages; checkpoints that are saved from here on still hold both."""
        average = self.average_model
        if average is not None and not average.num_averaged and self._seen_step > self._start_step:
            warn_user(
                f"{type(self).__name__} has averaged nothing: `should_update` was false after all updates. The module "
                "has the weights of training. Start averaging sooner."
            )
        self._apply_at_end(module)

    def on_fit_end(self, trainer: TrainerProtocol, module: Any) -> None:
        """Give the module the averages where nothing was left to train."""
        self._apply_at_end(module)

    def on_exception(self, trainer: TrainerProtocol, module: Any, exception: BaseException) -> None:
        """Give the module its own weights back, if an evaluation was under way."""
        self._end_evaluation(module)

    def teardown(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Give the module its own weights back, if an evaluation never ended."""
        self._end_evaluation(module)

    def on_save_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the averages as "state_dict", and unless only weights are saved the weights of training."""
        average = self.average_model
        if average is None or not average.num_averaged or not average.is_of(module):
            return
        here = checkpoint["state_dict"]
        values = average.named_values()
        others = {name: values.get(name, value) for name, value in here.items()}
        checkpoint["state_dict"] = here if self._is_applied else others
        if "callbacks" in checkpoint:
            checkpoint[TRAINING_WEIGHTS_KEY] = others if self._is_applied else here
            checkpoint[AVERAGING_KEY] = {"n_averaged": average.n_averaged.clone()}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of averaged models, by which a resumed run without this callback is warned."""
        return {"n_averaged": 0 if self.average_model is None else self.average_model.num_averaged}

    def _swap_models(self, module: Any) -> None:
        """Exchange weights and averages; the name is that of Lightning's class, like the next one."""
        assert self.average_model is not None
        self.average_model.exchange()

    def _copy_average_to_current(self, module: Any) -> None:
        """Give the module the averages at the end; the averages become the weights of training, for checkpoints."""
        assert self.average_model is not None
        self.average_model.exchange()

    def _end_evaluation(self, module: Any) -> None:
        if self._is_evaluating:
            self._swap_models(module)
            self._is_applied = self._is_evaluating = False

    def _apply_at_end(self, module: Any) -> None:
        average = self.average_model
        if self.apply_at_end and average is not None and not self._is_applied and average.num_averaged:
            self._copy_average_to_current(module)
            self._is_applied = True


@attrs.define(slots=False, eq=False, repr=False)
class EMAWeightAveraging(WeightAveraging):
    """Exponential moving average of the weights of training; see `WeightAveraging`.

    Each time `average = decay * average + (1 - decay) * weight`; the first time, the weights are copied. Averages after
    the updates that `update_every_n_steps` and `update_starting_at_step` select, and, if `update_starting_at_epoch` is
    given, at the end of each epoch from that one on as well.

    Args:
        device: As in `WeightAveraging`; likewise `use_buffers` and `apply_at_end`.
        decay: Weight of the previous average, from 0 to 1.
        update_every_n_steps: Average after the updates whose zero-based index is a multiple of it. 0 averages after no
            update, which needs `update_starting_at_epoch`.
        update_starting_at_step: Zero-based index of the first update after which weights are averaged. None is 0.
        update_starting_at_epoch: Zero-based index of the first epoch at whose end weights are averaged, in
            addition to those after updates. None averages at no end of an epoch.

    Raises:
        InvalidArgumentError: If a number is out of range.
    """

    decay: float = 0.999
    update_every_n_steps: int = 1
    update_starting_at_step: int | None = None
    update_starting_at_epoch: int | None = None
    avg_fn: Any = attrs.field(default=None, init=False)
    multi_avg_fn: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        check_number(self, "Pass the weight of the previous average, such as 0.999.", least=0, most=1, decay=self.decay)
        least = 1 if self.update_starting_at_epoch is None else 0
        action = "Pass 0 only beside `update_starting_at_epoch`."
        check_number(self, action, least=least, update_every_n_steps=self.update_every_n_steps)
        names = ("update_starting_at_step", "update_starting_at_epoch")
        first: dict[str, Any] = {name: getattr(self, name) for name in names}
        check_number(self, "Pass a zero-based index.", least=0, or_none=True, **first)
        decay = self.decay

        def update(averages: Any, weights: Any, _: Any) -> None:
            # as torch's `get_ema_multi_avg_fn`, without its checks of types and of gradient mode at each step
            torch._foreach_lerp_(averages, weights, 1.0 - decay)

        self.multi_avg_fn = update

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether the arguments select this update, or the end of this epoch."""
        every, first = self.update_every_n_steps, self.update_starting_at_step or 0
        if step_idx is not None and every > 0 and step_idx >= first and step_idx % every == 0:
            return True
        start = self.update_starting_at_epoch
        return epoch_idx is not None and start is not None and epoch_idx >= start


def check_no_other_averaging(callback: Callback, trainer: TrainerProtocol) -> None:
    """Raise `ValueError` if a trainer has another callback that averages weights, or saves some of the weights only."""
    where = type(callback).__name__
    save_only = getattr(trainer, "save_only", None)
    if save_only is not None:
        rule = "None where weights are averaged, as the averages of all are saved"
        raise ValueError(must_be("save_only", rule, save_only, where, "Leave out one of the two."))
    for other in trainer.callbacks:
        if getattr(other, "averages_weights", False) and other is not callback:
            rule = "without a second callback that averages weights"
            raise ValueError(must_be("callbacks", rule, type(other).__name__, where, "Pass one of them."))
