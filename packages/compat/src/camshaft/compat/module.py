"""`TrainingModule` with the names, hooks and arguments of earlier releases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from operator import attrgetter
from typing import IO, Any, ClassVar, ParamSpec, Self

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from camshaft.callbacks import summarize
from camshaft.compat.checkpoints.format import ReleaseFormat
from camshaft.compat.data_module import OF_DATA, do_nothing
from camshaft.compat.eras.processes import default_of
from camshaft.compat.eras.releases import behaviour_in
from camshaft.compat.hyperparameters import HyperparametersMixin
from camshaft.compat.private_parts import OwnFirst
from camshaft.hooks_core import ModelHooks, Receiver
from camshaft.hooks_core.dispatch.candidates import own_classes
from camshaft.hooks_core.dispatch.implementation import mentions_method
from camshaft.hooks_core.eras.hooks import hooks_of_eras
from camshaft.hooks_core.eras.releases import TODAY
from camshaft.hooks_core.support.messages import must_be, warn_user
from camshaft.loops.fit.resume import restore_module
from camshaft.loops.metrics import ReduceFx, not_compiled, reduction_name
from camshaft.loops.optimization.configuration import read_configuration
from camshaft.loops.optimization.update import is_under_autocast, with_arguments
from camshaft.trainer import CheckpointFormat
from camshaft.trainer import TrainingModule as _TrainingModule
from camshaft.trainer.export import names_not_exported
from camshaft.trainer.hyperparameters import (
    HYPER_PARAMETERS_KEY,
    NAME_KEY,
    TYPE_KEY,
    container_argument,
    parameters_of,
    takes_any,
)

_Path = str | os.PathLike[str] | IO[bytes]

_told: set[type] = set()
"""The classes of which this process has warned."""


def scheduler_settings(config: Any) -> dict[str, Any]:
    """Return a scheduler with its settings as the dictionary that it was in earlier releases."""
    return {name: getattr(config, name) for name in ("scheduler", "name", "interval", "frequency", "monitor", "strict")}


def _from_trainer(name: str, without: Any) -> Any:
    """Return an attribute that a module reads from its trainer, unless it sets its own; `without` without a trainer."""

    def read(module: Any) -> Any:
        for store in ("_modules", "_parameters", "_buffers"):  # where a module keeps some of its own
            if name in vars(module).get(store, {}):
                return vars(module)[store][name]
        return without if module._trainer is None else getattr(module._trainer, name)

    return OwnFirst(read, f"The trainer's `{name}`; {without} without a trainer.")


class EarlierHooks:
    """Defaults of hooks that were removed, or took other arguments.

    They do not count as overrides.
    """

    __hook_base__: ClassVar[bool] = True

    def init_optimizers(self, optimizers: Any) -> tuple[list[Any], list[Any], list[int]]:
        """Return optimizers, schedulers and frequencies of a return value of `configure_optimizers`."""
        read = read_configuration(optimizers)
        return read.optimizers, [scheduler_settings(config) for config in read.schedulers], read.frequencies

    def summarize(self, mode: str | None = "top") -> None:
        """Print a summary of the model: of its parts with "top", of their parts as well with "full".

        Raises:
            ValueError: If there is no such mode; None prints nothing.
        """
        if mode not in ("top", "full", None):
            where, action = f"{type(self).__qualname__}.summarize", "Pass one of these."
            raise ValueError(must_be("mode", "'top', 'full' or None", mode, where, action))
        if mode is not None:
            print(summarize(self, 1 if mode == "top" else -1))  # type: ignore[arg-type]

    def restore_weights(self, model: Any) -> None:
        """Load the weights of the checkpoint from which fit resumes, if any. Collective."""
        run = self.trainer.current_run  # type: ignore[attr-defined]
        if run is not None and run.checkpoint is not None:
            restore_module(run, run.checkpoint)

    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        """Return the result of `amp.initialize` for the module and its optimizers at a level."""
        return amp.initialize(model, optimizers, opt_level=amp_level)

    def configure_ddp(self, model: Any, device_ids: Any = None) -> Any:
        """Wrap what the module's override was given as the strategy would. Collective."""
        return _default(self, "configure_ddp")(model)

    def init_ddp_connection(self, *args: Any, **kwargs: Any) -> None:
        """Join the processes as the strategy would, whatever the arguments are. Collective."""
        _default(self, "init_ddp_connection")()


class TrainingModule(EarlierHooks, HyperparametersMixin, _TrainingModule):
    """A module of any era; see `camshaft.trainer.TrainingModule`.

    It has what modules of releases 0.4 to 1.9 had beside hooks, and runs with `camshaft.compat.Trainer`.
    """

    __hook_base__: ClassVar[bool] = True

    CHECKPOINT_HYPER_PARAMS_KEY: ClassVar[str] = HYPER_PARAMETERS_KEY
    CHECKPOINT_HYPER_PARAMS_NAME: ClassVar[str] = NAME_KEY
    CHECKPOINT_HYPER_PARAMS_TYPE: ClassVar[str] = TYPE_KEY

    checkpoint_formats: ClassVar[tuple[CheckpointFormat, ...]] = (ReleaseFormat(),)

    # assigned to and shadowed as any attribute: modules of their own may use these names
    use_amp: Any = _from_trainer("use_amp", False)
    use_ddp: Any = _from_trainer("use_ddp", False)
    use_dp: Any = _from_trainer("use_dp", False)
    use_ddp2: Any = _from_trainer("use_ddp2", False)
    on_gpu: Any = _from_trainer("on_gpu", False)
    on_tpu: Any = _from_trainer("on_tpu", False)
    use_tpu: Any = _from_trainer("use_tpu", False)
    datamodule: Any = _from_trainer("datamodule", None)
    experiment: Any = _from_trainer("experiment", None)
    _device: Any = OwnFirst(attrgetter("device"), "`device`.")
    _current_fx_name: Any = OwnFirst(lambda module: getattr(module._metric_log, "hook", None), "The hook that runs.")
    _dtype: Any = OwnFirst(attrgetter("dtype"), "`dtype`.")

    def get_progress_bar_dict(self) -> dict[str, Any]:
        """Return the metrics of a progress bar; an override may change them."""
        trainer = self._trainer
        log = None if trainer is None else trainer.metric_log
        return {} if log is None else dict(log.progress_bar_metrics)

    def get_tqdm_dict(self) -> dict[str, Any]:
        """Return `get_progress_bar_dict()`."""
        return self.get_progress_bar_dict()

    def grad_norm(self, norm_type: float | str) -> dict[str, Any]:
        """Return the norm of each parameter's gradient, and of all. `track_grad_norm` logs what an override returns."""
        from camshaft.compat.names.utilities.functions import grad_norm  # rarely needed

        return dict(grad_norm(self, norm_type))

    def log_grad_norm(self, grad_norm_dict: Mapping[str, Any]) -> None:
        """Log the norms of gradients. With `track_grad_norm` an override is called at every update."""
        self.log_dict(grad_norm_dict, on_step=True, on_epoch=True)

    # logging

    @not_compiled
    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: ReduceFx = "mean",
        *args: Any,
        **options: Any,
    ) -> None:
        """Log a value; see `camshaft.trainer.TrainingModule.log`.

        Args:
            name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, args, options: As there. Options may also be
                `tbptt_reduce_fx`, `tbptt_pad_token`, `sync_dist_op` and `sync_dist_group` of releases 1.0 to 1.5, where
                they ask for what `reduce_fx` does over splits and processes as well.
        """
        if not _LOG_OPTIONS.isdisjoint(options):
            _take_log_options(name, reduce_fx, options)
        super().log(name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, *args, **options)

    @not_compiled
    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Log each value of a dictionary or `torchmetrics.MetricCollection`; see `log`."""
        if not _LOG_OPTIONS.isdisjoint(options):
            reduce_fx = args[4] if len(args) > 4 else options.get("reduce_fx", "mean")
            _take_log_options(", ".join(dictionary), reduce_fx, options)
        super().log_dict(dictionary, *args, **options)

    # optimization by hand

    @not_compiled
    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Differentiate a loss under manual optimization; see `camshaft.trainer.TrainingModule.manual_backward`.

        Args:
            loss: A scalar.
            args, kwargs: What `loss.backward` gets; an optimizer in the first place is left out, as 1.0 wanted one.
        """
        passed = args[1:] if args and isinstance(args[0], Optimizer) else args
        named = {name: value for name, value in kwargs.items() if name != "optimizer"}
        if len(passed) != len(args) or len(named) != len(kwargs):
            _tell_of_zeroing(self)
        super().manual_backward(loss, *passed, **named)

    def optimizers(self, use_pl_optimizer: bool = True) -> Optimizer | list[Optimizer]:
        """Return the optimizer of the fit; a list if `configure_optimizers` returned several or none.

        Args:
            use_pl_optimizer: If true, they have `optimizer`, itself, and `toggle_model`, as Lightning's wrapper has.
        """
        found = super().optimizers(use_pl_optimizer)
        if use_pl_optimizer:
            for optimizer in found if isinstance(found, list) else [found]:
                vars(optimizer).setdefault("optimizer", optimizer)
                vars(optimizer)["toggle_model"] = partial(_toggled, self, optimizer)
        return found

    def toggle_optimizer(self, optimizer: Optimizer, optimizer_idx: int | None = None) -> None:
        """Make only the parameters of one optimizer require gradients; see `camshaft.trainer.TrainingModule`.

        Args:
            optimizer: One of the fit's optimizers.
            optimizer_idx: Its index, as 1.0 to 1.4 wanted it.

        Raises:
            ValueError: If it has another index, or is none of them.
        """
        if optimizer_idx is not None:
            optimizers = self.trainer.fit_loop.optimization.optimizers
            if any(optimizer is one for one in optimizers) and optimizers[optimizer_idx] is not optimizer:
                where = f"{type(self).__qualname__}.toggle_optimizer"
                raise ValueError(must_be("optimizer_idx", "its index", optimizer_idx, where, "Leave it out."))
        super().toggle_optimizer(optimizer)

    def untoggle_optimizer(self, optimizer: Optimizer | int | None = None, optimizer_idx: int | None = None) -> None:
        """Restore which parameters require gradients after `toggle_optimizer`.

        Args:
            optimizer: The one that is at work, or its index; None means whichever it is.
            optimizer_idx: Its index, as 1.1 to 1.4 named it.
        """
        chosen = optimizer_idx if optimizer is None else optimizer
        if isinstance(chosen, int):
            chosen = self.trainer.fit_loop.optimization.optimizers[chosen]
        super().untoggle_optimizer(chosen)

    def manual_optimizer_step(
        self, optimizer: Any, *args: Any, make_optimizer_step: Any = None, optimizer_closure: Any = None, **kwargs: Any
    ) -> None:
        """Step an optimizer under manual optimization and zero its gradients, as in 1.0.6 to 1.0.8. Collective.

        Hooks: on_before_optimizer_step; around it optimizer_step, if it is overridden.

        Args:
            optimizer: The optimizer.
            make_optimizer_step: False leaves it at calling the closure.
            optimizer_closure: Called for the gradients, if they are not there yet.
            args, kwargs: Further arguments of `optimizer.step`.

        Raises:
            RuntimeError: Under automatic optimization, or without a trainer.
        """
        trainer: Any = self.trainer
        if self.automatic_optimization:
            where = f"{type(self).__qualname__}.manual_optimizer_step"
            action = "Set it in `__init__`, or return the loss from `training_step`."
            raise RuntimeError(must_be("automatic_optimization", "False", True, where, action))
        if make_optimizer_step is not None and not make_optimizer_step:
            if optimizer_closure is not None:
                with torch.enable_grad():
                    optimizer_closure()
            return
        own_step = with_arguments(
            trainer.hooks,
            "optimizer_step",
            optimizer_idx=None,
            on_tpu=False,
            using_native_amp=is_under_autocast(trainer.strategy),
            using_lbfgs=isinstance(optimizer, LBFGS),
        )
        if own_step is not None:
            own_step(trainer.current_epoch, trainer.batch_idx, optimizer, optimizer_closure or (lambda: None))
        else:
            closure = {} if optimizer_closure is None else {"closure": optimizer_closure}
            optimizer.step(*args, **kwargs, **closure)
        optimizer.zero_grad()

    # weights

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: _Path | None = None,
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build a module from a checkpoint of any release; see `camshaft.trainer.TrainingModule.load_from_checkpoint`.

        Args:
            checkpoint_path, map_location, hparams_file, strict, weights_only: As there.
            kwargs: Likewise. `tags_csv` is an earlier name of `hparams_file`, and `path` without a `checkpoint_path`
                another of that.

        Raises:
            TypeError: If there is no path, or two.
        """
        path = _choose_path(cls, checkpoint_path, kwargs)
        if "tags_csv" in kwargs and "tags_csv" not in parameters_of(cls):
            tags_csv = kwargs.pop("tags_csv")
            hparams_file = tags_csv if hparams_file is None else hparams_file
        return super().load_from_checkpoint(path, map_location, hparams_file, strict, weights_only, **kwargs)

    @classmethod
    def load_from_metrics(cls, weights_path: _Path, tags_csv: _Path, map_location: Any = None) -> Self:
        """Call `load_from_checkpoint` with hyperparameters from a table such as `meta_tags.csv`.

        Args:
            weights_path: The checkpoint.
            tags_csv: The table.
            map_location: As that of `load_from_checkpoint`.

        Returns:
            The module.
        """
        return cls.load_from_checkpoint(weights_path, map_location, tags_csv=tags_csv)


# for TorchScript, which would compile or read them
TrainingModule.__jit_unused_properties__ = TrainingModule.__jit_ignored_attributes__ = [
    *names_not_exported(TrainingModule),
    *(name for name, value in vars(TrainingModule).items() if isinstance(value, OwnFirst)),
]


@contextmanager
def _toggled(module: TrainingModule, optimizer: Optimizer, sync_grad: bool = True) -> Iterator[None]:
    """Let only an optimizer's parameters require gradients, which stay on each rank unless `sync_grad` is true."""
    with nullcontext() if sync_grad else getattr(module.trainer.strategy, "no_sync", nullcontext)():
        module.toggle_optimizer(optimizer)
        yield
        module.untoggle_optimizer(optimizer)


def _choose_path(cls: type, checkpoint_path: _Path | None, arguments: dict[str, Any]) -> _Path:
    """Return the checkpoint's path, be it under its other name, which it then takes out of the arguments.

    Raises:
        TypeError: If there is none, or there are two and the constructor can have no use for a `path`.
    """
    takes_path = "path" in parameters_of(cls) or takes_any(cls) or container_argument(cls, {"path": None}) is not None
    if checkpoint_path is not None and takes_path:
        return checkpoint_path
    path = arguments.pop("path", None)
    chosen: _Path | None = path if checkpoint_path is None else checkpoint_path
    if chosen is None or (path is not None and checkpoint_path is not None):
        rule, where = "passed once", f"{cls.__qualname__}.load_from_checkpoint"
        raise TypeError(must_be("path", rule, (path, checkpoint_path), where, "Pass the path first."))
    return chosen


def _default(module: object, hook: str) -> Callable[..., Any]:
    default = default_of(hook)
    if default is None:
        rule, where = "left to the trainer's strategy", f"{type(module).__qualname__}.{hook}"
        action = f"Call it in an override of `{hook}` alone: the strategy does this where there is none."
        raise NotImplementedError(must_be(hook, rule, "a call", where, action))
    return default


def _without_index(name: str, num_arguments: int, position: int) -> Callable[..., Any]:
    """Return a default of today that takes `optimizer_idx` as well, by name or at a position.

    Args:
        name: The hook.
        num_arguments: The number of its arguments without the index.
        position: The place of the index.
    """
    today = getattr(ModelHooks, name)

    @wraps(today)
    def default(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("optimizer_idx", None)
        has_index = len(args) > num_arguments
        today(self, *args[:position], *args[position + has_index :], **kwargs)

    return default


def _backward(self: Any, *args: Any, loss: Any = None, **kwargs: Any) -> None:
    """Differentiate the loss: `(loss)`, `(loss, optimizer, optimizer_idx, ...)` or `(trainer, loss, optimizer, ...)`.

    What follows is passed to `loss.backward`.
    """
    rest = list(args)
    while loss is None and rest:
        first = rest.pop(0)
        loss = first if isinstance(first, Tensor) else None
    if rest and (rest[0] is None or isinstance(rest[0], Optimizer)):
        rest = rest[2:]
    for name in ("trainer", "optimizer", "optimizer_idx", "use_amp"):
        kwargs.pop(name, None)
    loss.backward(*rest, **kwargs)


_Arguments = ParamSpec("_Arguments")

_OF_EARLIER_STEPS = {"optimizer_idx", "on_tpu", "using_native_amp", "using_lbfgs", "second_order_closure"}


def takes_earlier_forms(step: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Decorate a default `optimizer_step` such that it takes the arguments of earlier eras, too.

    These are the arguments of today with `optimizer_idx` before the closure, the closure perhaps as
    `second_order_closure`, and behind it `on_tpu`, `using_native_amp` and `using_lbfgs`, by position or by name. A
    closure that only evaluates once more, as in 0.x, has a method `step_by_default`, which is called in place of
    `step`.

    Args:
        step: The method, with the arguments of today.

    Returns:
        The method. It raises `TypeError` if it is called in an earlier form without the closure, by which alone it
        knows what the era's default is, or with other arguments.
    """

    @wraps(step)
    def in_any_form(*arguments: Any, **named: Any) -> None:
        module, *positional = arguments
        has_index = len(positional) > 3 and isinstance(positional[3], int)
        if has_index or len(positional) > 4 or named.keys() & _OF_EARLIER_STEPS:
            if len(positional) > 3 and "optimizer_idx" in named:
                positional.insert(3, named.pop("optimizer_idx"))
            positional, named = _arguments_of_today(*positional, **named), {}
        closure = positional[3] if len(positional) > 3 else named.get("optimizer_closure")
        step_by_default = getattr(closure, "step_by_default", None)
        if step_by_default is not None:
            step_by_default()
        else:
            step(module, *positional, **named)

    return in_any_form


def _arguments_of_today(
    epoch: int,
    batch_idx: int,
    optimizer: Any,
    optimizer_idx: Any = None,
    optimizer_closure: Any = None,
    on_tpu: Any = None,
    using_native_amp: Any = None,
    using_lbfgs: Any = None,
    *,
    second_order_closure: Any = None,
) -> list[Any]:
    closures = [closure for closure in (optimizer_closure, second_order_closure) if closure is not None]
    if len(closures) != 1:
        rule, where = "one callable, the closure that the override got", "super().optimizer_step"
        action = "Pass it on: `super().optimizer_step(epoch, batch_idx, optimizer, optimizer_idx, closure)`."
        raise TypeError(must_be("optimizer_closure", rule, closures or None, where, action))
    return [epoch, batch_idx, optimizer, closures[0]]


_OF_MODULES: Mapping[str, Callable[..., Any]] = {
    **{
        spec.name: do_nothing
        for spec in hooks_of_eras().values()
        if Receiver.MODULE in spec.receivers and (spec.kind == "event" or spec.name.endswith("_end"))
    },
    **OF_DATA,
    "optimizer_step": takes_earlier_forms(ModelHooks.optimizer_step),
    "optimizer_zero_grad": _without_index("optimizer_zero_grad", 3, 3),
    "backward": _backward,
    "configure_gradient_clipping": _without_index("configure_gradient_clipping", 3, 1),
    "lr_scheduler_step": _without_index("lr_scheduler_step", 2, 1),
}

# Put in here and not written out above, so that editors and type checkers compare an override with today's signature.
for _name, _hook in _OF_MODULES.items():
    setattr(EarlierHooks, _name, _hook)


def _tell_of_zeroing(module: Any) -> None:
    """Warn once of a class that passes optimizers to `manual_backward`, as up to 1.1, and zeroes gradients nowhere.

    There is no need to in 1.1, whose steps did. A class that declares its era has decided.
    """
    kind = type(module)
    if kind in _told or behaviour_in(getattr(module.trainer, "current_run", None)) is not TODAY:
        return
    _told.add(kind)
    if not mentions_method(own_classes(kind), "zero_grad"):
        warn_user(
            f"{kind.__qualname__} optimizes by hand and zeroes gradients nowhere, so they add up from step to step. "
            'Call `optimizer.zero_grad()`, or declare `hook_era = "1.1"` if it was written for 1.1, where '
            "`optimizer.step()` zeroed them."
        )


_LOG_OPTIONS = frozenset({"tbptt_reduce_fx", "tbptt_pad_token", "sync_dist_op", "sync_dist_group"})
"""Options of `log` in releases 1.0 to 1.5."""


def _take_log_options(name: str, reduce_fx: object, options: dict[str, Any]) -> None:
    """Remove the options of earlier releases.

    Args:
        name: The name that is logged.
        reduce_fx: How values are reduced, over splits and processes as well.
        options: The options of `log`, by name.

    Raises:
        ValueError: If one asks for something else than `reduce_fx`.
    """
    given = {option: options.pop(option, None) for option in _LOG_OPTIONS}
    same = f"left out, or what `reduce_fx` is ({reduce_fx!r})"
    for option, is_fine, rule in (
        ("sync_dist_op", not options.get("sync_dist") or _is_same(given["sync_dist_op"], reduce_fx), same),
        ("tbptt_reduce_fx", _is_same(given["tbptt_reduce_fx"], reduce_fx), same),
        ("tbptt_pad_token", given["tbptt_pad_token"] == 0, "left out, since nothing is padded"),
        ("sync_dist_group", False, "left out: all processes reduce together"),
    ):
        if given[option] is not None and not is_fine:
            action = "Reduce it before, or by `reduce_fx`."
            raise ValueError(must_be(option, rule, given[option], f"log({name!r})", action))


def _is_same(value: object, reduce_fx: object) -> bool:
    known = reduction_name(value)
    return value is reduce_fx or (known is not None and known == reduction_name(reduce_fx))
