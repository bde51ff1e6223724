"""Callbacks that train a part of a model first, and more of it later."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from camshaft.callbacks.arguments import InvalidArgumentError, check_not_both, check_number
from camshaft.callbacks.param_groups import check_takes_groups, follow_groups, set_rate
from camshaft.callbacks.weights.averaged_weights import check_unsharded
from camshaft.hooks_core import Callback
from camshaft.hooks_core.dispatch.binding import bind
from camshaft.hooks_core.protocols import TrainerProtocol
from camshaft.hooks_core.support.messages import must_be, warn_user

Modules = nn.Module | Iterable[Any]
"""A module, or modules in any nesting of iterables."""


class BaseFinetuning(Callback):
    """Freezes parts of a module before training, and unfreezes them as epochs start; to be subclassed.

    Define `freeze_before_training` and `finetune_function`. Build the frozen parts in the module's `__init__`, and the
    optimizer from the parameters that require gradients, `[p for p in self.parameters() if p.requires_grad]`: frozen
    parameters that it contains are trained with the learning rate of their group once they are unfrozen.

    Learning-rate schedulers of torch are extended to added groups, whose learning rates follow that of the first group
    in proportion. A resumed fit has the same frozen parameters, and the same groups.

    Raises:
        ValueError: In fit, if the module's parameters are sharded, or a checkpoint has groups of other parameters; when
            a group is added, if a scheduler plans its groups when constructed (`OneCycleLR`, `CyclicLR`, `SWALR`).
    """

    def __init__(self) -> None:
        self._module: Any = None
        self._optimizers: list[Any] = []
        self._first: set[int] = set()  # ids of the parameters in groups that optimizers had when fit started
        self._loaded: dict[str, Any] | None = None
        self._is_fitting = False

    def freeze_before_training(self, module: Any) -> None:
        """Freeze the parts that are not trained at first; called before `configure_optimizers`. To be overridden."""
        name = f"{type(self).__qualname__}.freeze_before_training"
        raise NotImplementedError(f"{name} is not implemented. Freeze layers there, by `self.freeze`.")

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        """Unfreeze the parts of the module that are trained from this epoch on. To be overridden.

        Called for each optimizer.

        An override with a fourth argument gets the optimizer's index.

        Args:
            epoch: Zero-based index of the epoch.
            optimizer: An optimizer of the fit.
        """
        name = f"{type(self).__qualname__}.finetune_function"
        raise NotImplementedError(f"{name} is not implemented. Call `self.unfreeze_and_add_param_group` there.")

    @staticmethod
    def flatten_modules(modules: Modules) -> list[nn.Module]:
        """Return the submodules that have parameters of their own or no children."""
        if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleDict):
            found: Iterable[nn.Module] = modules.modules()
        else:
            items = modules.values() if isinstance(modules, nn.ModuleDict) else modules
            found = [part for item in items for part in BaseFinetuning.flatten_modules(item)]
        return [part for part in found if not part._modules or part._parameters]

    @staticmethod
    def filter_params(modules: Modules, train_bn: bool = True, requires_grad: bool = True) -> Iterator[nn.Parameter]:
        """Yield the trainable or the frozen parameters of modules; shared ones once for each.

        Args:
            train_bn: Whether to include those of batch normalisation.
            requires_grad: Whether to yield the trainable parameters, or the frozen ones.
        """
        for part in BaseFinetuning.flatten_modules(modules):
            if _is_batch_norm(part) and not train_bn:
                continue
            for parameter in part.parameters(recurse=False):
                if parameter.requires_grad == requires_grad:
                    yield parameter

    @staticmethod
    def make_trainable(modules: Modules) -> None:
        """Make all parameters trainable, and let batch normalisation update its statistics."""
        for part in BaseFinetuning.flatten_modules(modules):
            _set_trainable(part, True)

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Freeze a module's own parameters, not those of submodules; for batch normalisation, the statistics too."""
        _set_trainable(module, False)

    @staticmethod
    def freeze(modules: Modules, train_bn: bool = True) -> None:
        """Freeze modules.

        Args:
            modules: The modules to freeze.
            train_bn: Whether their batch normalisation stays trainable.
        """
        for part in BaseFinetuning.flatten_modules(modules):
            _set_trainable(part, train_bn and _is_batch_norm(part))

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters, each once, that are in no group of an optimizer.

        Args:
            params: The parameters.
        """
        seen = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return list({id(parameter): parameter for parameter in params if id(parameter) not in seen}.values())

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Unfreeze modules, and add a group of their parameters to an optimizer.

        Warns of frozen parameters that the optimizer already contains, which stay in their group.

        Args:
            modules: The modules to unfreeze.
            lr: Learning rate of the group. None is that of the first group divided by `initial_denom_lr`.
            initial_denom_lr: See `lr`.
            train_bn: Whether to unfreeze their batch normalisation too.
        """
        parts = [part for part in BaseFinetuning.flatten_modules(modules) if train_bn or not _is_batch_norm(part)]
        frozen = list(BaseFinetuning.filter_params(parts, requires_grad=False))
        BaseFinetuning.make_trainable(parts)
        new = BaseFinetuning.filter_on_optimizer(optimizer, BaseFinetuning.filter_params(parts))
        if not {id(parameter) for parameter in frozen} <= {id(parameter) for parameter in new}:
            warn_user(
                f"{type(optimizer).__name__} was built with frozen parameters, which it now trains with the learning "
                "rate of their group. Build it from the parameters that require gradients."
            )
        if new:
            rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else lr
            optimizer.add_param_group({"params": new, "lr": rate})

    def setup(self, trainer: TrainerProtocol, module: Any, stage: str) -> None:
        """Freeze the parts that are not trained at first, in fit."""
        self._is_fitting = stage == "fit"
        if self._is_fitting:
            self._module, self._optimizers, self._loaded = None, [], None
            self.freeze_before_training(module)

    def on_load_checkpoint(self, trainer: TrainerProtocol, module: Any, checkpoint: dict[str, Any]) -> None:
        """Freeze what the checkpoint has frozen, before strategy and optimizer read what is trainable."""
        saved = checkpoint.get("callbacks", {}).get(self.state_key) or {}
        # an override of `state_dict` may have wrapped it
        within = [saved, *(part for part in saved.values() if isinstance(part, dict))]
        state = next((part for part in within if "frozen" in part), None)
        if not self._is_fitting or state is None:
            return
        self._loaded = state
        frozen, still = set(state["frozen"]), set(state["without_statistics"])
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.requires_grad = name not in frozen
        for name, part in module.named_modules(remove_duplicate=False):
            if _is_batch_norm(part) and part.running_mean is not None:
                part.track_running_stats = name not in still

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Add the groups of a checkpoint's optimizers, before their states are loaded."""
        check_unsharded(module, "sharding fixes which parameters are trainable", self)
        self._module, self._optimizers = module, list(trainer.optimizers)
        parts, (loaded, self._loaded) = _parts_of(self._optimizers), (self._loaded, None)
        own = [(part, len(part.param_groups)) for part in parts]
        for part, groups in zip(parts, loaded["param_groups"] if loaded else (), strict=False):
            _regroup(part, groups, module, type(self).__name__)
        self._first = {id(one) for part, num in own for group in part.param_groups[:num] for one in group["params"]}
        for optimizer in self._optimizers:
            self._follow(trainer, optimizer, self._added_to(optimizer))

    def on_train_epoch_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Unfreeze the parts that are due."""
        finetune: Any = self.finetune_function
        num_arguments = len(bind(finetune, ("module", "epoch", "optimizer", "optimizer_idx")))
        for optimizer_idx, optimizer in enumerate(self._optimizers):
            before = {id(group): float(group["lr"]) for group in optimizer.param_groups}
            finetune(*(module, trainer.current_epoch, optimizer, optimizer_idx)[:num_arguments])
            groups = optimizer.param_groups
            added = [idx for idx, group in enumerate(groups) if id(group) not in before]
            earlier = [idx for idx in self._added_to(optimizer) if idx not in added]
            self._follow(trainer, optimizer, added)
            changed = [idx for idx in earlier if before[id(groups[idx])] != float(groups[idx]["lr"])]
            self._follow(trainer, optimizer, changed)

    def state_dict(self) -> dict[str, Any]:
        """Return the names of the parameters in each group, and of what is frozen."""
        module = self._module
        if module is None:
            return {}
        every = module.named_parameters(remove_duplicate=False)
        norms = ((name, part) for name, part in module.named_modules(remove_duplicate=False) if _is_batch_norm(part))
        return {
            "param_groups": [_names_in_groups(part, module) for part in _parts_of(self._optimizers)],
            "frozen": [name for name, parameter in every if not parameter.requires_grad],
            "without_statistics": [name for name, part in norms if not part.track_running_stats],
        }

    def _added_to(self, optimizer: Any) -> list[int]:
        """Return the indexes of the groups that were added since fit started."""
        groups = enumerate(optimizer.param_groups)
        return [idx for idx, group in groups if self._first.isdisjoint(map(id, group["params"]))]

    def _follow(self, trainer: TrainerProtocol, optimizer: Any, group_idxs: list[int]) -> None:
        """Extend the schedulers to groups that were added, or got another learning rate."""
        if group_idxs:
            for config in trainer.lr_scheduler_configs:
                follow_groups(config.scheduler, optimizer, group_idxs, type(self).__name__)


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)


def _set_trainable(module: nn.Module, is_trainable: bool) -> None:
    """Freeze or unfreeze a module itself, not its submodules."""
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        module.track_running_stats = is_trainable
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad = is_trainable


def _parts_of(optimizers: Iterable[Any]) -> list[Any]:
    """Return optimizers, in place of a joint one those that it is made of, which hold its groups."""
    return [part for one in optimizers for part in getattr(one, "optimizers", [one])]


def _names_in_groups(optimizer: Any, module: nn.Module) -> list[list[str | None]]:
    """Return the names of the parameters in each group of an optimizer."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def _regroup(optimizer: Any, groups: list[list[str]], module: nn.Module, where: str) -> None:
    """Give an optimizer groups of the named parameters; its loaded state brings the groups' options."""
    parameters, now = dict(module.named_parameters()), _names_in_groups(optimizer, module)
    if now == groups:
        return
    missing = [name for group in groups for name in group if name not in parameters]
    if missing or len(groups) < len(now):
        rule = "the saved optimizer, with the same parameters in its groups"
        action = "Resume with the same module and optimizer, or fit without a checkpoint."
        raise ValueError(must_be("optimizer", rule, missing or f"{len(now)} groups", where, action))
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    for idx, group in enumerate(groups):
        if idx == len(optimizer.param_groups):
            optimizer.param_groups.append(dict(options))
        optimizer.param_groups[idx]["params"] = [parameters[name] for name in group]


def multiplicative(epoch: int) -> float:
    """Return 2, for every epoch."""
    return 2.0


@attrs.define(slots=False, eq=False, repr=False)
class BackboneFinetuning(BaseFinetuning):
    """Trains all but the module's `backbone` first, then the backbone as well, with a growing learning rate.

    See `BaseFinetuning` for the requirements on the module, and for resuming. The backbone's learning rate is set as
    each epoch starts; within epochs it follows schedulers that step there.

    If the optimizer was built from all parameters, the backbone is trained with the learning rate of its group in that
    epoch; from the next one on, the computed learning rate is set on the optimizer's last group, as in Lightning. A
    warning says so.

    Args:
        unfreeze_backbone_at_epoch: Zero-based index of the first epoch that trains the backbone.
        lambda_func: Returns the factor of the backbone's learning rate for each epoch after that, given the index of
            the epoch that follows. The default doubles it.
        backbone_initial_ratio_lr: Ratio of the backbone's first learning rate to that of the first group. None is
            1 / `initial_denom_lr`.
        backbone_initial_lr: The backbone's first learning rate; None computes it from the ratio.
        should_align: Whether the first group's learning rate limits that of the backbone.
        initial_denom_lr: See `backbone_initial_ratio_lr`.
        train_bn: Whether batch normalisation in the backbone is trained from the start. Otherwise it stays frozen.
        verbose: Whether rank 0 prints both learning rates when they are set.
        rounding: Number of decimal places of printed learning rates.

    Raises:
        InvalidArgumentError: If a number is out of range, or the first learning rate is given in two ways.
        ValueError: In fit, if the module has no `backbone` when it is set up, there are several optimizers, or the
            optimizer or a scheduler does not support added groups; or as `BaseFinetuning`.
    """

    unfreeze_backbone_at_epoch: int = 10
    lambda_func: Callable[[int], float] = multiplicative
    backbone_initial_ratio_lr: float | None = None
    backbone_initial_lr: float | None = None
    should_align: bool = True
    initial_denom_lr: float = 10.0
    train_bn: bool = True
    verbose: bool = False
    rounding: int = 12
    previous_backbone_lr: float | None = attrs.field(default=None, init=False)
    _group_idx: int = attrs.field(default=0, init=False)
    _prints: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        action, denominator = "Pass the zero-based index of an epoch.", self.initial_denom_lr
        check_number(self, action, least=0, unfreeze_backbone_at_epoch=self.unfreeze_backbone_at_epoch)
        first_lr = {name: getattr(self, name) for name in ("backbone_initial_ratio_lr", "backbone_initial_lr")}
        check_number(self, above=0, or_none=True, **first_lr, initial_denom_lr=denominator)
        check_not_both(self, **first_lr)
        if denominator != 10.0 and any(one is not None for one in first_lr.values()):
            rule = "left at its default when the first learning rate is given"
            raise InvalidArgumentError("initial_denom_lr", rule, denominator, self, "Pass one of them.")

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
        """Freeze the backbone, except its batch normalisation if that is trained."""
        self.freeze(module.backbone, train_bn=self.train_bn)

    def on_fit_start(self, trainer: TrainerProtocol, module: Any) -> None:
        """Check optimizer and schedulers; add the groups of a checkpoint's optimizer."""
        where = type(self).__name__
        if type(self).finetune_function is not BackboneFinetuning.finetune_function:
            super().on_fit_start(trainer, module)  # an override knows its optimizers
            return
        if len(trainer.optimizers) != 1:
            rule, action = "one optimizer", "Use one, or a BaseFinetuning of your own."
            raise ValueError(must_be("optimizers", rule, len(trainer.optimizers), where, action))
        frozen = self.filter_params(module.backbone, train_bn=self.train_bn, requires_grad=False)
        if self.filter_on_optimizer(trainer.optimizers[0], frozen):
            check_takes_groups([config.scheduler for config in trainer.lr_scheduler_configs], where)
            if len(_parts_of(trainer.optimizers)) > 1:
                rule = "one to which groups can be added"
                action = "Add to one of its `optimizers`, by a BaseFinetuning."
                raise ValueError(must_be("optimizer", rule, type(trainer.optimizers[0]).__name__, where, action))
        super().on_fit_start(trainer, module)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        """Unfreeze the backbone, or raise its learning rate."""
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
            rate = min(rate, current) if self.should_align else rate
            set_rate(optimizer.param_groups[self._group_idx], rate)
        self.previous_backbone_lr = rate
        if self._prints:
            rounded = round(current, self.rounding), round(rate, self.rounding)
            print(f"BackboneFinetuning, epoch {epoch}: learning rate {rounded[0]}, of the backbone {rounded[1]}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `BaseFinetuning` and the backbone's learning rate."""
        return super().state_dict() | {"previous_backbone_lr": self.previous_backbone_lr, "group_idx": self._group_idx}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the backbone's learning rate."""
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
        self._group_idx = state_dict["group_idx"]

    def _initial_lr(self, current: float) -> float:
        if self.backbone_initial_lr is not None:
            return self.backbone_initial_lr
        if self.backbone_initial_ratio_lr is not None:
            return current * self.backbone_initial_ratio_lr
        return current / self.initial_denom_lr
