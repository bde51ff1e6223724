"""Hooks of the eras as data, laid over those of today: who had which, with which arguments, and in which moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import attrs

from camshaft.hooks_core.catalogue import CATALOGUE, Catalogue
from camshaft.hooks_core.spec import HookSpec, Receiver, hook, spec_of
from camshaft.hooks_core.support.messages import must_be

_Method = TypeVar("_Method", bound=Callable[..., Any])

ERAS = ("0.5", "0.7", "0.8", "1.x", "2.0", "2.x")
"""The eras, oldest first: those that the specification documents describe, and 1.x as it was measured to be."""

EARLIER_ERAS = ERAS[:4]
"""Eras whose code does not run on today's protocol as it is."""

MODULE_ONLY_ERAS = ERAS[:3]
"""Eras whose documents know hooks of the module alone."""


@attrs.frozen
class EraSpec(HookSpec):
    """A hook, with what the eras have of it.

    Args:
        eras: The eras that know it, oldest first.
        is_current: Whether today's loops call it.
        signatures: The parameters in the eras where they differ from `parameters`.
        optionals: The optional arguments in the earlier eras that have any.
        fixed: Arguments that only signatures of earlier eras have, with what they are where the hook's caller does not
            pass them.
        aliases: Arguments of earlier eras that go by name alone, by their names of today, each with the names that
            signatures have for it. Underscores stand for the argument at their place.
        today: Current hooks it maps to, for a hook that no present era has: hooks of today, or what runners of eras
            call by a later name. Empty for hooks of today and for those without a counterpart.
        moments: The same as `today` in the eras, and in the releases of them ("1.1"), where they differ.
        precedes: Whether it comes before the hooks it maps to; else it follows them.
        condition: When a hook with `today` is called in that moment, as an expression of the arguments of today's hook;
            empty for always.
    """

    eras: tuple[str, ...] = ("1.x", "2.0", "2.x")
    is_current: bool = True
    signatures: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    optionals: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    fixed: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    aliases: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    today: tuple[str, ...] = ()
    moments: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)
    precedes: bool = False
    condition: str = ""

    def parameters_in(self, era: str | None) -> tuple[str, ...]:
        """Return the parameter names in an era; None stands for today."""
        return self.parameters if era is None else self.signatures.get(era, self.parameters)

    def optional_in(self, era: str | None) -> tuple[str, ...]:
        """Return the optional parameter names in an era; None stands for today."""
        return self.optional if era is None else self.optionals.get(era, ())

    def receivers_in(self, era: str | None) -> tuple[Receiver, ...]:
        """Return the receivers in an era; the documents of the eras before 1.x describe modules only."""
        return (Receiver.MODULE,) if era in MODULE_ONLY_ERAS else self.receivers

    def is_in(self, era: str | None) -> bool:
        """Return whether an era has it; None stands for today."""
        return self.is_current if era is None else era in self.eras

    def eras_of(self, kind: Receiver) -> tuple[str, ...]:
        """Return the eras that have the hook for a kind of receiver, oldest first."""
        return tuple(era for era in self.eras if kind in self.receivers_in(era))

    def moments_in(self, era: str, version: str | None = None) -> tuple[str, ...]:
        """Return the hooks in whose moments a hook of an earlier era is called.

        Args:
            era: The era.
            version: The release of it, if that is known ("1.1.8").
        """
        release = ".".join((version or "").split(".")[:2])
        return self.moments.get(release, self.moments.get(era, self.today))

    def as_in(self, era: str | None) -> HookSpec:
        """Return the hook as an era has it; None stands for today."""
        facts = {field.name: getattr(self, field.name) for field in attrs.fields(HookSpec)}
        facts |= {"parameters": self.parameters_in(era), "optional": self.optional_in(era)}
        return HookSpec(**facts | {"receivers": self.receivers_in(era)})


def check_era(era: str | None) -> None:
    """Raise `ValueError` unless `era` is None or one of `ERAS`."""
    if era is not None and era not in ERAS:
        raise ValueError(must_be("era", f"one of {', '.join(ERAS)}", era, "the hook catalogue", "Pass one of these."))


def hooks_of_eras(catalogue: Catalogue = CATALOGUE) -> dict[str, EraSpec]:
    """Return every hook of every era by name: those of a catalogue of today, then those of earlier eras alone."""
    return {name: in_eras(spec) for name, spec in catalogue.items()} | EARLIER_HOOKS


@lru_cache(maxsize=512)
def in_eras(spec: HookSpec) -> EraSpec:
    """Return a hook of today with what the eras have of it."""
    if isinstance(spec, EraSpec):
        return spec
    since = next((era for era, names in _SINCE.items() if spec.name in names), "1.x")
    eras = {"tbptt_split_batch": ("0.7", "0.8", "1.x")}.get(spec.name, ERAS[ERAS.index(since) :])
    return EraSpec(**attrs.asdict(spec, recurse=False), eras=eras, **_DIFFERENCES.get(spec.name, {}))


def catalogue_of(era: str | None, catalogue: Catalogue = CATALOGUE) -> Catalogue:
    """Return the hooks of an era as it has them; None stands for today.

    Raises:
        ValueError: If `era` is none of `ERAS`.
    """
    check_era(era)
    if era is None:
        return catalogue
    own = Catalogue((spec.as_in(era) for spec in hooks_of_eras(catalogue).values() if era in spec.eras), era)
    own.registered |= catalogue.registered & own.keys()
    return own


_SINCE = {
    "0.5": {
        *("configure_optimizers", "train_dataloader", "val_dataloader", "test_dataloader", "on_before_zero_grad"),
        *("on_after_backward", "optimizer_step", "training_step", "validation_step", "test_step"),
    },
    "0.7": {"backward"},
    "0.8": {
        *("prepare_data", "setup", "teardown", "transfer_batch_to_device", "on_fit_start", "on_sanity_check_start"),
        *("on_fit_end", "on_train_start", "on_train_batch_start", "on_train_batch_end", "on_train_end"),
        "optimizer_zero_grad",
    },
    "2.0": {"on_predict_model_train"},
    "2.x": {"configure_model", "on_validation_model_zero_grad"},
}
"""Hooks of today by the first era that has them; all others are there since 1.x."""

_BATCH = ("batch", "batch_idx", "dataloader_idx")
_UPDATE = ("epoch", "batch_idx", "optimizer", "optimizer_idx")
_LOSS = ("loss", "optimizer", "optimizer_idx")
_SPECIAL_CASES = ("on_tpu", "using_native_amp", "using_lbfgs")
_FIRST_OPTIMIZER = {"optimizer_idx": 0}
_STEP = ("batch", "batch_idx", "optimizer_idx", "hiddens")
_EVALUATION_STEP = {"signatures": {"0.5": ("batch", "batch_nb", "dataloader_i")}}
_OUTPUTS = {"signatures": {"1.x": ("outputs",)}, "fixed": {"outputs": None}}
_OPTIMIZER_INDEX = (
    *("optimizer_idx", "optimizer_i", "optimizer_index", "optimizer_id", "optimizer_ix", "optimizer_nb"),
    *("optimiser_idx", "optimiser_i", "optim_idx", "optim_i", "optim_index", "optim_id"),
    *("opt_idx", "opt_i", "opt_index", "opt_id", "opt_ix"),
)

_DIFFERENCES: dict[str, dict[str, Any]] = {
    "training_step": {
        "signatures": {
            "0.5": ("batch", "batch_nb", "optimizer_i", "hiddens"),
            "0.7": _STEP,
            "0.8": _STEP,
            "1.x": _STEP,
        },
        "aliases": {
            "optimizer_idx": _OPTIMIZER_INDEX,
            "hiddens": ("hiddens", "hidden", "hidden_state", "hidden_states"),
        },
    },
    "validation_step": _EVALUATION_STEP,
    "test_step": _EVALUATION_STEP,
    "on_train_batch_start": {"signatures": {"0.8": _BATCH, "1.x": _BATCH}, "fixed": {"dataloader_idx": 0}},
    "on_train_batch_end": {"signatures": {"0.8": _BATCH, "1.x": ("outputs", *_BATCH)}, "fixed": {"dataloader_idx": 0}},
    "on_train_epoch_end": _OUTPUTS,
    "on_predict_epoch_end": _OUTPUTS,
    "transfer_batch_to_device": {"signatures": {"0.8": ("batch", "device")}},
    "on_before_optimizer_step": {"signatures": {"1.x": ("optimizer", "optimizer_idx")}, "fixed": _FIRST_OPTIMIZER},
    "optimizer_step": {
        "signatures": {
            "0.5": ("current_epoch", "batch_nb", "optimizer", "optimizer_i", "second_order_closure"),
            "0.7": (*_UPDATE, "second_order_closure"),
            "0.8": (*_UPDATE, "second_order_closure"),
            "1.x": (*_UPDATE, "optimizer_closure", *_SPECIAL_CASES),
        },
        "optionals": {"0.8": _SPECIAL_CASES},
        "fixed": {**_FIRST_OPTIMIZER, "on_tpu": False, "using_native_amp": False, "using_lbfgs": False},
    },
    "optimizer_zero_grad": {"signatures": {"0.8": _UPDATE, "1.x": _UPDATE}, "fixed": _FIRST_OPTIMIZER},
    "backward": {
        "signatures": {"0.7": ("trainer", *_LOSS), "0.8": ("trainer", *_LOSS), "1.x": _LOSS},
        "optionals": {"0.7": ("use_amp",)},
        "fixed": {"optimizer": None, "optimizer_idx": 0, "use_amp": False},
    },
    "configure_gradient_clipping": {
        "signatures": {"1.x": ("optimizer", "optimizer_idx", "gradient_clip_val", "gradient_clip_algorithm")},
        "fixed": _FIRST_OPTIMIZER,
    },
    "lr_scheduler_step": {"signatures": {"1.x": ("scheduler", "optimizer_idx", "metric")}, "fixed": _FIRST_OPTIMIZER},
}
"""Facts of `EraSpec` about hooks of today."""


def _hook(*receivers: Receiver, precedes_module: bool = False, **facts: Any) -> Callable[[_Method], _Method]:
    """State a hook that only earlier eras have."""
    of_hook = {name: facts.pop(name) for name in ("kind", "stage", "returns") if name in facts}

    def state(method: _Method) -> _Method:
        stated = spec_of(hook(*receivers, precedes_module=precedes_module, **of_hook)(method))
        assert stated is not None
        method.__hook__ = EraSpec(  # type: ignore[attr-defined]
            **attrs.asdict(stated, recurse=False), is_current=False, **facts
        )
        return method

    return state


_CALLBACK, _MODULE = Receiver.CALLBACK, Receiver.MODULE
_0_X, _1_X = ("0.5", "0.7", "0.8"), ("1.x",)
_BEFORE_2_0 = (*_0_X, *_1_X)
_SINCE_0_7 = ("0.7", "0.8")
_SINCE_0_7_AND_1_X = (*_SINCE_0_7, *_1_X)
_0_8_AND_1_X = ("0.8", *_1_X)
_TO_LOG = "a dictionary with `log`, `progress_bar` or metrics; nothing in 1.x"
_TO_GO_ON_WITH = "the output to go on with; None keeps the step's own"
_TO_SHOW = "a dictionary with what the progress bar shows"


def _epochs(word: str) -> dict[str, tuple[str, ...]]:
    """Return the moments of a hook of epochs: those of training, and since 1.2 those of validation and test as well."""
    of_training = (f"on_train_epoch_{word}",)
    of_all = (*of_training, f"on_validation_epoch_{word}", f"on_test_epoch_{word}")
    return {"1.0": of_training, "1.1": of_training, "1.x": of_all}


class EarlierHooks:
    """Hooks of modules and callbacks, in the order in which those of one moment are called."""

    @_hook(_CALLBACK, stage="setup", eras=_1_X, precedes_module=True)
    def on_init_start(self) -> None:
        """When the trainer is made, before it has anything."""

    @_hook(_CALLBACK, stage="setup", eras=_1_X, precedes_module=True)
    def on_init_end(self) -> None:
        """When the trainer has been made."""

    @_hook(_CALLBACK, stage="setup", eras=_1_X, today=("setup",), precedes=True)
    def on_before_accelerator_backend_setup(self) -> None:
        """Before `setup`."""

    @_hook(_CALLBACK, stage="setup", eras=_1_X, today=("configure_sharded_model",), precedes=True)
    def on_configure_sharded_model(self) -> None:
        """Before `configure_sharded_model`."""

    @_hook(_MODULE, stage="setup", eras=_1_X)
    def on_post_move_to_device(self) -> None:
        """After the module was moved to a TPU, where it may tie weights again; on other devices never."""

    @_hook(
        _MODULE,
        kind="override",
        stage="setup",
        eras=_SINCE_0_7,
        signatures={"0.7": ("proc_rank", "world_size")},
        optionals=dict.fromkeys(_SINCE_0_7, ("is_slurm_managing_tasks",)),
        fixed={"is_slurm_managing_tasks": False},
    )
    def init_ddp_connection(self, global_rank: int, world_size: int) -> None:
        """Join the process group, in place of the default."""

    @_hook(_MODULE, kind="override", stage="setup", returns="the optimizers and the schedulers", eras=_SINCE_0_7)
    def init_optimizers(self, optimizers: Any) -> Any:
        """Turn what `configure_optimizers` returned into optimizers and schedulers, in place of the default."""

    @_hook(_MODULE, kind="override", stage="setup", returns="the model and the optimizers", eras=_SINCE_0_7)
    def configure_apex(self, amp: Any, model: Any, optimizers: Any, amp_level: str) -> Any:
        """Prepare model and optimizers for mixed precision by apex."""

    @_hook(_MODULE, kind="override", stage="setup", returns="the wrapped model", eras=_SINCE_0_7)
    def configure_ddp(self, model: Any, device_ids: Any) -> Any:
        """Wrap the model for data-parallel training, in place of the default."""

    @_hook(
        _MODULE,
        kind="override",
        stage="setup",
        eras=_SINCE_0_7_AND_1_X,
        optionals={"1.x": ("max_depth",)},
        fixed={"max_depth": None},
    )
    def summarize(self, mode: str) -> Any:
        """Print a summary of the model before training, in place of the default."""

    @_hook(_MODULE, kind="override", stage="setup", eras=_SINCE_0_7)
    def restore_weights(self, model: Any) -> None:
        """Restore weights before training, in place of the default."""

    @_hook(_CALLBACK, _MODULE, eras=_0_8_AND_1_X, today=("on_fit_start",))
    def on_pretrain_routine_start(self) -> None:
        """Before the sanity check."""

    @_hook(_CALLBACK, _MODULE, eras=_0_8_AND_1_X, today=("on_fit_start",))
    def on_pretrain_routine_end(self) -> None:
        """Before the sanity check, when everything is set up."""

    @_hook(_MODULE, kind="provide", stage="data", returns="a loader", eras=("0.5",), today=("train_dataloader",))
    def tng_dataloader(self) -> Any:
        """When training data is first needed."""

    @_hook(_MODULE, stage="data", eras=_1_X, today=("train_dataloader",), precedes=True)
    def on_train_dataloader(self) -> None:
        """Before `train_dataloader` is asked for."""

    @_hook(_MODULE, stage="data", eras=_1_X, today=("val_dataloader",), precedes=True)
    def on_val_dataloader(self) -> None:
        """Before `val_dataloader` is asked for."""

    @_hook(_MODULE, stage="data", eras=_1_X, today=("test_dataloader",), precedes=True)
    def on_test_dataloader(self) -> None:
        """Before `test_dataloader` is asked for."""

    @_hook(_MODULE, stage="data", eras=_1_X, today=("predict_dataloader",), precedes=True)
    def on_predict_dataloader(self) -> None:
        """Before `predict_dataloader` is asked for."""

    @_hook(
        _CALLBACK,
        _MODULE,
        stage="train",
        eras=_BEFORE_2_0,
        today=("on_train_epoch_start",),
        moments=_epochs("start"),
        precedes=True,
    )
    def on_epoch_start(self) -> None:
        """When an epoch begins: of training, and since 1.2 of validation and test as well."""

    @_hook(
        _CALLBACK,
        _MODULE,
        stage="train",
        returns="-1 skips the rest of the epoch",
        eras=_BEFORE_2_0,
        signatures={"0.5": (), "1.x": ()},
        today=("on_train_batch_start",),
        precedes=True,
    )
    def on_batch_start(self, batch: Any) -> int | None:
        """Before anything happens for a training batch."""

    @_hook(_MODULE, kind="override", stage="train", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def training_step_end(self, outputs: Any) -> Any:
        """After `training_step`, with what it returned."""

    @_hook(_MODULE, kind="override", stage="train", returns=_TO_GO_ON_WITH, eras=_0_X, today=("training_step_end",))
    def training_end(self, outputs: Any) -> Any:
        """After `training_step`, with what it returned: `training_step_end` by its name up to 0.6."""

    @_hook(_CALLBACK, _MODULE, stage="train", eras=_BEFORE_2_0, today=("on_train_batch_end",))
    def on_batch_end(self) -> None:
        """After a training batch and its update."""

    @_hook(_MODULE, stage="train", eras=("0.5",))
    def on_tng_metrics(self, metrics: Any) -> None:
        """When metrics of training are about to be logged: what it puts into them is logged as well. Up to 0.4."""

    @_hook(_MODULE, kind="provide", stage="train", returns=_TO_SHOW, eras=_SINCE_0_7_AND_1_X)
    def get_progress_bar_dict(self) -> Any:
        """When a progress bar is drawn."""

    @_hook(_MODULE, kind="provide", stage="train", returns=_TO_SHOW, eras=_SINCE_0_7, today=("get_progress_bar_dict",))
    def get_tqdm_dict(self) -> Any:
        """When a progress bar is drawn: `get_progress_bar_dict` by its first name."""

    @_hook(_MODULE, kind="override", stage="train", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def training_epoch_end(self, outputs: Any) -> Any:
        """When a training epoch ends, with what its steps returned."""

    @_hook(_CALLBACK, _MODULE, stage="train", eras=_BEFORE_2_0, today=("on_train_epoch_end",), moments=_epochs("end"))
    def on_epoch_end(self) -> None:
        """When an epoch ends: of training, and since 1.2 of validation and test as well."""

    @_hook(_MODULE, stage="validate", eras=_0_X, today=("on_validation_start",), precedes=True)
    def on_pre_performance_check(self) -> None:
        """When validation begins."""

    @_hook(_MODULE, stage="validate", eras=_0_X, today=("on_validation_end", "on_test_end"))
    def on_post_performance_check(self) -> None:
        """When validation or a test ends."""

    @_hook(_MODULE, kind="override", stage="validate", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def validation_step_end(self, outputs: Any) -> Any:
        """After `validation_step`, with what it returned."""

    @_hook(_MODULE, kind="override", stage="validate", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def validation_epoch_end(self, outputs: Any) -> Any:
        """When validation ends, with what its steps returned."""

    @_hook(_MODULE, kind="override", stage="validate", returns=_TO_LOG, eras=_0_X, today=("validation_epoch_end",))
    def validation_end(self, outputs: Any) -> Any:
        """When validation ends, with what its steps returned: `validation_epoch_end` by its name up to 0.6."""

    @_hook(_MODULE, kind="override", stage="test", returns=_TO_GO_ON_WITH, eras=_SINCE_0_7_AND_1_X)
    def test_step_end(self, outputs: Any) -> Any:
        """After `test_step`, with what it returned."""

    @_hook(_MODULE, kind="override", stage="test", returns=_TO_LOG, eras=_SINCE_0_7_AND_1_X)
    def test_epoch_end(self, outputs: Any) -> Any:
        """When test ends, with what its steps returned."""

    @_hook(_MODULE, kind="override", stage="test", returns=_TO_LOG, eras=_0_X, today=("test_epoch_end",))
    def test_end(self, outputs: Any) -> Any:
        """When test ends, with what its steps returned: `test_epoch_end` by its name up to 0.6."""

    @_hook(_MODULE, stage="checkpoint", eras=_BEFORE_2_0, today=("on_save_checkpoint",))
    def on_hpc_save(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is about to be written, after `on_save_checkpoint`; before 2.0 only as a job of a cluster
        was about to end.
        """

    @_hook(_MODULE, stage="checkpoint", eras=_BEFORE_2_0, today=("on_load_checkpoint",))
    def on_hpc_load(self, checkpoint: dict[str, Any]) -> None:
        """When a checkpoint is loaded, after `on_load_checkpoint`; before 2.0 only one that `on_hpc_save` took part
        in.
        """

    @_hook(
        _CALLBACK,
        stage="exception",
        eras=_1_X,
        today=("on_exception",),
        condition="isinstance(exception, KeyboardInterrupt)",
        precedes=True,
    )
    def on_keyboard_interrupt(self) -> None:
        """When the user interrupts a verb."""


EARLIER_HOOKS: dict[str, EraSpec] = {
    name: spec for name, method in vars(EarlierHooks).items() if isinstance(spec := spec_of(method), EraSpec)
}
"""The hooks that only earlier eras have, by name."""

EVERYDAY_NAMES = frozenset({"summarize", "init_optimizers", "restore_weights"})
"""Names of old hooks that a class of today may well use for a method of its own: no evidence by themselves."""
