"""Training the head of a model first, and its backbone later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from camshaft.callbacks.errors import InvalidArgumentError
from camshaft.callbacks.finetuning import BaseFinetuning
from camshaft.callbacks.weights.scheduled_groups import check_takes_groups
from camshaft.hooks_core.messages import must_be

if TYPE_CHECKING:
    from camshaft.hooks_core.protocols import TrainerProtocol


def multiplicative(epoch: int) -> float:
    """2, in every epoch."""
    return 2.0


class BackboneFinetuning(BaseFinetuning):
    """Trains all but the module's `backbone` first, then the backbone as well, with a learning rate that grows.

    See `BaseFinetuning` for what the module has to do, and what a resumed fit has. The backbone's learning rate is set
    as each epoch starts; within epochs it follows the course of the scheduler, if that steps there.

    An optimizer that was built of all parameters trains the backbone with the learning rate of its group from that
    epoch on; from the next one on, what would be the backbone's learning rate becomes that of the optimizer's last
    group, as in Lightning. A warning says so.

    Args:
        unfreeze_backbone_at_epoch: Zero-based index of the epoch from which on the backbone is trained.
        lambda_func: Given the index of the next epoch: by what the backbone's learning rate is multiplied as an epoch
            after that starts. The default doubles it.
        backbone_initial_ratio_lr: The backbone's first learning rate as a share of the first group's. None means
            1 / `initial_denom_lr`.
        backbone_initial_lr: The backbone's first learning rate itself; None leaves it to the share.
        should_align: Whether the backbone's learning rate stays at the first group's once it has reached it.
        initial_denom_lr: See `backbone_initial_ratio_lr`.
        train_bn: Whether batch normalisation in the backbone is trained: from the start, and with the rest of it.
            Otherwise it is frozen for good.
        verbose: Whether rank 0 prints both learning rates as they are set.
        rounding: To how many decimal places.

    Raises:
        InvalidArgumentError: If a number is out of range, or the share is given in two ways.
        ValueError: In fit, if the module has no `backbone` when it is set up, there are several optimizers, or a
            scheduler cannot take the group that will be added; or as `BaseFinetuning`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float | None = None,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        if unfreeze_backbone_at_epoch < 0:
            action = "Pass the zero-based index of an epoch."
            raise InvalidArgumentError(
                "unfreeze_backbone_at_epoch", "0 or more", unfreeze_backbone_at_epoch, where, action
            )
        for field, value in (
            ("backbone_initial_ratio_lr", backbone_initial_ratio_lr),
            ("backbone_initial_lr", backbone_initial_lr),
            ("initial_denom_lr", initial_denom_lr),
        ):
            if value is not None and not value > 0:
                raise InvalidArgumentError(field, "more than 0", value, where, "Pass a positive number.")
        if backbone_initial_ratio_lr is not None and backbone_initial_lr is not None:
            rule, action = "None beside `backbone_initial_ratio_lr`", "Pass one of both."
            raise InvalidArgumentError("backbone_initial_lr", rule, backbone_initial_lr, where, action)
        if initial_denom_lr != 10.0 and (backbone_initial_ratio_lr, backbone_initial_lr) != (None, None):
            rule = "left out where the first learning rate is given otherwise"
            raise InvalidArgumentError("initial_denom_lr", rule, initial_denom_lr, where, "Pass one of them.")
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.previous_backbone_lr: float | None = None
        self._group_idx = 0
        self._prints = False

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Freeze the backbone, in fit."""
        if stage == "fit":
            self.previous_backbone_lr = None
            self._prints = self.verbose and trainer.is_global_zero
            backbone = getattr(module, "backbone", None)
            if not isinstance(backbone, nn.Module):
                where, action = f"{type(module).__qualname__} at set-up", "Build it in `__init__`."
                raise ValueError(must_be("backbone", "an nn.Module", backbone, where, action))
        super().setup(trainer, module, stage)

    def freeze_before_training(self, module: Any) -> None:
        """Freeze the backbone, but for its batch normalisation if that is trained."""
        self.freeze(module.backbone, train_bn=self.train_bn)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check optimizer and schedulers; make the groups that a checkpoint's optimizer has."""
        where = type(self).__name__
        if len(trainer.optimizers) != 1:
            rule, action = "one optimizer", "Use one, or a BaseFinetuning of your own."
            raise ValueError(must_be("optimizers", rule, len(trainer.optimizers), where, action))
        frozen = self.filter_params(module.backbone, train_bn=self.train_bn, requires_grad=False)
        if self.filter_on_optimizer(trainer.optimizers[0], frozen):
            check_takes_groups([config.scheduler for config in trainer.lr_scheduler_configs], where)
        super().on_fit_start(trainer, module)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        """Unfreeze the backbone, or let its learning rate grow."""
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        current = float(optimizer.param_groups[0]["lr"])
        if self.previous_backbone_lr is None:
            rate = self._initial_lr(current)
            num_groups = len(optimizer.param_groups)
            self.unfreeze_and_add_param_group(module.backbone, optimizer, rate, train_bn=self.train_bn)
            self._group_idx = min(num_groups, len(optimizer.param_groups) - 1)
        else:
            rate = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            if self.should_align and rate > current:
                rate = current
            _set_lr(optimizer.param_groups[self._group_idx], rate)
        self.previous_backbone_lr = rate
        if self._prints:
            rounded = round(current, self.rounding), round(rate, self.rounding)
            print(f"BackboneFinetuning, epoch {epoch}: learning rate {rounded[0]}, of the backbone {rounded[1]}")

    def state_dict(self) -> dict[str, Any]:
        """As `BaseFinetuning`, and the backbone's learning rate."""
        own = {"previous_backbone_lr": self.previous_backbone_lr, "group_idx": self._group_idx}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the backbone's learning rate."""
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
        self._group_idx = state_dict["group_idx"]

    def _initial_lr(self, current: float) -> float:
        if self.backbone_initial_lr is not None:
            return self.backbone_initial_lr
        if self.backbone_initial_ratio_lr is not None:
            return current * self.backbone_initial_ratio_lr
        return current / self.initial_denom_lr


def _set_lr(group: dict[str, Any], lr: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)  # what the optimizer has captured
    else:
        group["lr"] = lr
