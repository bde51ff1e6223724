"""Drawing configurations that make sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import assume
from hypothesis import strategies as st

from comparison.comparing import is_comparable
from comparison.configuration import Configuration, Scheduling
from comparison.difference import Difference
from comparison.differences import DIFFERENCES, UNDER_IMPORT_NAMES

_OVERRIDES = (
    "optimizer_step",
    "backward",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_validation_model_eval",
    "on_validation_model_train",
    "on_validation_model_zero_grad",
    "on_test_model_eval",
    "on_test_model_train",
    "on_predict_model_eval",
    "on_predict_model_train",
)
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_LENGTHS = st.integers(2, 4)


@st.composite
def fits(draw: st.DrawFn) -> Configuration:
    """Runs of fit, and perhaps of other verbs after it."""
    is_manual = draw(_rarely())
    is_stream = draw(_rarely())
    configuration = Configuration(
        verbs=draw(st.sampled_from([("fit",), ("fit", "validate"), ("fit", "test", "predict")])),
        num_batches=draw(st.integers(2, 5)),
        num_eval_batches=draw(st.lists(_LENGTHS, min_size=1, max_size=2).map(tuple)),
        is_stream=is_stream,
        trainer=draw(_trainer(is_manual=is_manual, is_stream=is_stream)),
        optimizer=draw(st.sampled_from(["sgd", "momentum", "adam"])),
        scheduling=draw(st.none() | schedulings()),
        steps_schedulers=draw(st.sampled_from(["never", "batch", "epoch"])),
        is_manual=is_manual,
        no_loss_at=draw(st.just(frozenset[int]()) | st.frozensets(st.integers(0, 4), max_size=3)),
        **draw(_common()),
        **draw(_cut_short()),
    )
    if draw(_rarely()) and not is_manual:
        optimizer = draw(st.sampled_from(["own", "sam", "duck"]))
        configuration = attrs.evolve(configuration, optimizer=optimizer, no_loss_at=frozenset())
        if optimizer == "sam":  # its second look adds to the gradients of an open window
            configuration = _without(configuration, "accumulate_grad_batches")
        if optimizer in ("sam", "duck"):  # updates are counted by what comes once in each; torch's schedulers take none
            configuration = attrs.evolve(configuration, scheduling=None)
    if draw(_rarely()) and configuration.stops_at is None and configuration.raises_in is None:
        configuration = attrs.evolve(configuration, continues_to=configuration.trainer["max_epochs"] + 1)
    if not draw(st.booleans()):
        configuration = attrs.evolve(configuration, verbs=("fit",), num_eval_batches=())
    if is_manual:
        configuration = attrs.evolve(configuration, gives_closures=draw(st.booleans()))
    return _checked(configuration)


@st.composite
def fits_under_import_names(draw: st.DrawFn) -> Configuration:
    """Runs of fit, with what differs from Lightning without the import names."""
    configuration = draw(fits())
    kinds = {
        "loaders with generators": {"loaders": "torch", "has_generators": True},
        "loaders that draw": {"loaders": "drawing"},
        "no optimizer": {"optimizer": "none", "scheduling": None, "no_loss_at": frozenset(), "is_manual": False},
        "draws before the first batch": {"draws_at_start": True, "is_stream": False},
    }
    chosen = draw(st.sets(st.sampled_from(sorted(kinds)), min_size=1, max_size=2))
    for kind in sorted(chosen):
        configuration = attrs.evolve(configuration, **kinds[kind])
    shuffle, dropout = draw(st.booleans()), draw(st.sampled_from([0.0, 0.25]))
    configuration = attrs.evolve(configuration, shuffle=shuffle, dropout=dropout)
    if configuration.optimizer == "none":  # gradients stay, and torch clips none by value
        configuration = attrs.evolve(_without(configuration, "gradient_clip_algorithm"), continues_to=None)
    return _checked(configuration, UNDER_IMPORT_NAMES)


@st.composite
def evaluations(draw: st.DrawFn) -> Configuration:
    """Runs of the other verbs alone, of one or several loaders."""
    limit: st.SearchStrategy[Any] = st.sampled_from([1.0, 0.5, 1, 3])
    limits = {f"limit_{stage}_batches": draw(limit) for stage in ("val", "test", "predict")}
    return _checked(
        Configuration(
            verbs=tuple(draw(st.permutations(["validate", "test", "predict"]))),
            num_eval_batches=draw(st.lists(_LENGTHS, min_size=1, max_size=3).map(tuple)),
            trainer={**limits, "inference_mode": draw(st.booleans()), "log_every_n_steps": draw(st.integers(1, 3))},
            **draw(_common()),
        )
    )


@st.composite
def savings(draw: st.DrawFn) -> Configuration:
    """Runs with stock callbacks that monitor, of which some resume from the last checkpoint."""
    max_epochs = draw(st.integers(1, 3))
    resumes = draw(st.booleans())
    rhythms: list[dict[str, Any]] = [{}, {"every_n_epochs": 2}, {"every_n_epochs": 5}, {"every_n_train_steps": 2}]
    saving = {"save_top_k": -1, **draw(st.sampled_from(rhythms[:1] if resumes else rhythms))}
    if not resumes:
        ranked = {
            "monitor": draw(st.sampled_from(["val_loss", "loss_epoch", "epoch", "step"])),
            "mode": draw(st.sampled_from(["min", "max"])),
        }
        # without a file of its own, "last" moves at other times
        saving |= draw(st.sampled_from([{"save_last": True}, {**ranked, "save_top_k": 1}, {**ranked, "save_top_k": 2}]))
        if saving.get("monitor") == "loss_epoch":  # it is there at the epoch's end
            saving["save_on_train_epoch_end"] = "every_n_train_steps" not in saving
        elif "every_n_train_steps" not in saving:
            saving |= draw(st.sampled_from([{}, *({"save_on_train_epoch_end": at_end} for at_end in (True, False))]))
    stopping = {"monitor": "val_loss", "patience": draw(st.integers(0, 1)), "min_delta": 0.3}
    return _checked(
        Configuration(
            num_batches=draw(st.integers(2, 4)),
            trainer={
                "max_epochs": max_epochs,
                "accumulate_grad_batches": draw(st.integers(1, 2)),
                "log_every_n_steps": draw(st.integers(1, 3)),
                "val_check_interval": 1.0 if resumes else draw(st.sampled_from([1.0, 2])),
            },
            optimizer=draw(st.sampled_from(["sgd", "momentum", "adam"])),
            scheduling=draw(st.none() | schedulings()),
            checkpoints=saving,
            resumes_to=max_epochs + draw(st.integers(1, 2)) if resumes else None,
            early_stopping=stopping if not resumes and draw(st.booleans()) else None,
            **draw(_common()),
        )
    )


def _checked(configuration: Configuration, differences: Sequence[Difference] = DIFFERENCES) -> Configuration:
    """The configuration, without what means nothing in it."""
    if configuration.is_stream or "limit_train_batches" in configuration.trainer:
        configuration = _without(configuration, "overfit_batches")
    if configuration.loads_again and differences is DIFFERENCES:
        configuration = attrs.evolve(configuration, shuffle=False, dropout=0.0, samplers_know_epoch=False)
    if configuration.monitoring_first:  # its place decides what it finds
        configuration = attrs.evolve(configuration, callback_logs=False)
    if configuration.is_stream:
        configuration = attrs.evolve(configuration, loaders="torch", samplers_know_epoch=False)
    if configuration.loaders != "torch":
        configuration = attrs.evolve(_without(configuration, "overfit_batches"), shuffle=False)
    if configuration.scheduling not in (None, Scheduling(), Scheduling(monitor="loss_epoch")):
        configuration = attrs.evolve(configuration, optimizers_as="nested")
    assume(is_comparable(configuration, differences))
    return configuration


def _without(configuration: Configuration, argument: str) -> Configuration:
    trainer = {name: value for name, value in configuration.trainer.items() if name != argument}
    return attrs.evolve(configuration, trainer=trainer)


def _rarely() -> st.SearchStrategy[bool]:
    return st.sampled_from([False, False, False, True])


def schedulings() -> st.SearchStrategy[Scheduling]:
    """Schedulers of epochs and of steps."""
    return st.builds(
        Scheduling,
        interval=st.sampled_from(["epoch", "step"]),
        frequency=st.integers(1, 3),
        monitor=st.sampled_from([None, None, "loss_epoch", "val_loss"]),
    )


@st.composite
def _common(draw: st.DrawFn) -> dict[str, Any]:
    loaders_from = draw(st.sampled_from(["arguments", "module", "data"]))
    overrides = draw(st.frozensets(st.sampled_from(_OVERRIDES)))
    if loaders_from == "data":
        overrides |= draw(st.frozensets(st.sampled_from(_TRANSFERS)))
    return {
        "loaders_from": loaders_from,
        "overrides": overrides,
        "is_ragged": draw(st.booleans()),
        "returns": draw(st.sampled_from(["tensor", "dict"])),
        "monitoring_first": draw(st.booleans()),
        "shuffle": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0.0, 0.25])),
        "signatures": draw(st.sampled_from(["named", "named", "args", "rest", "decorated"])),
        "optimizers_as": draw(st.sampled_from(["nested", "flat", "lists", "tuple"])),
        "logs_again": draw(_rarely()),
        "callback_logs": draw(_rarely()),
        "batches": draw(st.sampled_from(["list", "list", "guarded"])),
        "loaders": draw(st.sampled_from(["torch", "torch", "own"])),
        "samplers_know_epoch": draw(_rarely()),
    }


@st.composite
def _cut_short(draw: st.DrawFn) -> dict[str, Any]:
    """At most one thing that keeps an epoch from running to its end."""
    epoch, batch_idx = draw(st.integers(0, 1)), draw(st.integers(0, 3))
    return draw(
        st.sampled_from(
            [
                {},
                {},
                {"stops_at": (epoch, batch_idx)},
                {"stops_in": draw(st.sampled_from(["setup", "on_fit_start", "on_train_start"]))},
                {"skips_from": batch_idx, "callback_skips": draw(st.booleans())},
                {
                    "raises_in": draw(
                        st.sampled_from(["on_train_start", "on_train_batch_end", "on_validation_epoch_end"])
                    )
                },
            ]
        )
    )


@st.composite
def _trainer(draw: st.DrawFn, *, is_manual: bool, is_stream: bool) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "max_epochs": draw(st.integers(1, 3)),
        "limit_val_batches": draw(st.sampled_from([1.0, 1.0, 0.5, 1, 0])),
        "num_sanity_val_steps": draw(st.sampled_from([0, 1, 2, -1])),
        "log_every_n_steps": draw(st.sampled_from([1, 2, 3, 50])),
        **draw(_validation_rhythm(is_stream=is_stream)),
    }
    if draw(_rarely()):
        numbers["max_steps"] = draw(st.integers(1, 6))
    if draw(_rarely()):
        numbers["min_epochs"] = min(2, numbers["max_epochs"])
    if draw(_rarely()):
        numbers["reload_dataloaders_every_n_epochs"] = draw(st.integers(1, 2))
    if not is_stream:
        limits = ["limit_train_batches", "limit_train_batches", "overfit_batches"]
        numbers[draw(st.sampled_from(limits))] = draw(st.sampled_from([1.0, 1.0, 0.5, 0.75, 2]))
    if not is_manual:
        numbers["accumulate_grad_batches"] = draw(st.sampled_from([1, 1, 2, 3, 4]))
        numbers["gradient_clip_val"] = draw(st.sampled_from([None, 0.1]))
        numbers["gradient_clip_algorithm"] = draw(st.sampled_from([None, "norm", "value"]))
    return numbers


@st.composite
def _validation_rhythm(draw: st.DrawFn, *, is_stream: bool) -> dict[str, Any]:
    every = draw(st.sampled_from([1, 1, 2, None]))
    intervals: list[int | float] = [1, 2] if every is None else [1.0, 1.0, 1] if is_stream else [1.0, 0.5, 0.34, 1]
    return {"check_val_every_n_epoch": every, "val_check_interval": draw(st.sampled_from(intervals))}
