"""What is no plain value goes through checkpoints, and comes back to who trusts the file."""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from trainer_parts import ListLogger, Regression, RegressionData, assert_same, loader, quiet_trainer, weights

from camshaft.callbacks import Callback
from camshaft.strategies import CheckpointError
from camshaft.trainer import DataModule, TrainingModule


class Mode(Enum):
    FAST = 1


@dataclass
class Config:
    width: int = 3


class Vocabulary:
    def __init__(self, words: list[str]) -> None:
        self.words = words


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Typed(Regression):
    def __init__(self, config: Any, activation: Any = nn.ReLU, mode: Any = Mode.FAST, rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.given = config, activation, mode, rate


OBJECTS = {
    "config": Config(5),
    "activation": partial(nn.LeakyReLU, 0.1),
    "mode": Mode.FAST,
}


def saved(module: TrainingModule, folder: Path, **arguments: Any) -> Path:
    trainer = quiet_trainer(folder, **arguments)
    trainer.fit(module, loader(2))
    trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt"


def test_arguments_that_are_objects_come_back_to_who_trusts_the_file(tmp_path: Path) -> None:
    module = Typed(**OBJECTS, rate=0.2)
    path = saved(module, tmp_path)
    loaded = Typed.load_from_checkpoint(path, weights_only=False)
    assert loaded.given[0] == Config(5) and loaded.given[2:] == (Mode.FAST, 0.2)
    assert loaded.given[1].func is nn.LeakyReLU
    assert_same(weights(loaded), weights(module))


@pytest.mark.parametrize("weights_only", [None, True])
def test_without_trust_the_arguments_that_lack_are_named_also_those_with_a_default(
    tmp_path: Path, weights_only: bool | None
) -> None:
    path = saved(Typed(**OBJECTS, rate=0.2), tmp_path)
    with pytest.raises(TypeError, match="`config`, `activation`, `mode` must be passed") as caught:
        Typed.load_from_checkpoint(path, weights_only=weights_only)
    for text in ("config=...", "weights_only=False", "Config", "functools.partial"):
        assert text in str(caught.value)
    with pytest.raises(TypeError, match="`mode` must be passed"):
        Typed.load_from_checkpoint(path, config=1, activation=2)
    assert Typed.load_from_checkpoint(path, config=1, activation=2, mode=3).given == (1, 2, 3, 0.2)


def test_an_argument_may_be_called_as_the_file_s_path_is(tmp_path: Path) -> None:
    class Reading(Regression):
        def __init__(self, path: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.given = path

    path = saved(Reading(tmp_path), tmp_path)
    with pytest.raises(TypeError, match="`path` must be passed"):
        Reading.load_from_checkpoint(path)
    assert Reading.load_from_checkpoint(path, path="b").given == "b"
    assert Reading.load_from_checkpoint(path, weights_only=False).given == tmp_path


def test_an_argument_that_lacks_a_part_of_it_is_named(tmp_path: Path) -> None:
    path = saved(Typed({"width": 3, "inner": {"act": nn.ReLU}}), tmp_path)
    with pytest.raises(TypeError, match="`config`, `activation`, `mode` must be passed"):
        Typed.load_from_checkpoint(path)
    assert Typed.load_from_checkpoint(path, weights_only=False).given[0] == {"width": 3, "inner": {"act": nn.ReLU}}


def test_what_could_not_be_pickled_is_named_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"cannot be pickled.*: activation \("):
        path = saved(Typed(1, lambda: None, 2), tmp_path)
    for weights_only in (None, False):
        with pytest.raises(TypeError, match=r"`activation` must be passed.*could not be pickled"):
            Typed.load_from_checkpoint(path, weights_only=weights_only)
    assert Typed.load_from_checkpoint(path, activation=3).given == (1, 3, 2, 0.1)


def test_what_can_no_longer_be_pickled_is_told_when_a_checkpoint_is_saved(tmp_path: Path) -> None:
    module = Regression()
    trainer = quiet_trainer(tmp_path)
    trainer.fit(module, loader(1))
    module.hparams.later = lambda: None
    with pytest.warns(UserWarning, match=r"Regression cannot be pickled.*: later \("):
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert Regression.load_from_checkpoint(tmp_path / "a.ckpt").hparams == {"learning_rate": 0.1, "dropout": 0.0}


def test_extra_state_that_is_an_object_is_told_where_it_lacks(tmp_path: Path) -> None:
    class Extra(Regression):
        def get_extra_state(self) -> Any:
            return {Mode.FAST}

        def set_extra_state(self, state: Any) -> None:
            self.state = state

    path = saved(Extra(), tmp_path)
    assert Extra.load_from_checkpoint(path, weights_only=False).state == {Mode.FAST}
    with pytest.raises(RuntimeError, match="_extra_state") as caught:
        Extra.load_from_checkpoint(path)
    assert "weights_only=False" in caught.value.__notes__[0]


def test_a_namespace_as_an_argument_is_one_again(tmp_path: Path) -> None:
    path = saved(Typed(Namespace(width=3, inner=Namespace(a=[1])), 1, 2), tmp_path)
    assert Typed.load_from_checkpoint(path).given[0] == Namespace(width=3, inner=Namespace(a=[1]))


def test_types_of_torch_and_numbers_of_numpy_are_plain(tmp_path: Path) -> None:
    path = saved(Typed(torch.float16, torch.device("cpu"), numpy.float64(0.5), 0.1), tmp_path)
    assert Typed.load_from_checkpoint(path).given == (torch.float16, torch.device("cpu"), 0.5, 0.1)


def test_an_argument_that_holds_all_hyperparameters_gets_them_whatever_else_there_is(tmp_path: Path) -> None:
    class Grouped(Regression):
        def __init__(self, options: Any, extra: int = 1, *, width: int) -> None:
            super().__init__()
            self.save_hyperparameters("width")
            self.save_hyperparameters(options)
            self.given = options, extra, width

    path = saved(Grouped({"extra": 5, "depth": 2}, width=3), tmp_path)
    loaded = Grouped.load_from_checkpoint(path)
    assert loaded.given[1:] == (1, 3) and loaded.given[0].depth == 2
    assert Grouped.load_from_checkpoint(path, depth=7).given[0].depth == 7


def test_arguments_that_a_constructor_does_not_take_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = saved(Regression(), tmp_path)
    with pytest.warns(UserWarning, match=r"Regression\.load_from_checkpoint leaves out .*: unknown, other\."):
        loaded = Regression.load_from_checkpoint(path, unknown=1, other=2, dropout=0.5)
    assert loaded.hparams == {"learning_rate": 0.1, "dropout": 0.5}


def test_hyperparameters_are_there_when_a_checkpoint_is_saved(tmp_path: Path) -> None:
    class Looking(Typed):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.seen = dict(checkpoint["hyper_parameters"])
            checkpoint["hyper_parameters"]["rate"] = 0.7

    module = Looking(**OBJECTS)
    path = saved(module, tmp_path)
    assert module.seen["config"] is OBJECTS["config"]
    assert Looking.load_from_checkpoint(path, weights_only=False).given[3] == 0.7
    assert module.hparams.rate == 0.1


def test_loggers_are_sent_all_but_where_the_module_says_no(tmp_path: Path) -> None:
    class Silent(Regression):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.save_hyperparameters(logger=False)

    for module, expected in ((Typed(**OBJECTS), 1), (Silent(Config()), 0)):
        logger = ListLogger()
        saved(module, tmp_path, logger=logger)
        assert len(logger.hparams) == expected
    assert Silent.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=False).hparams.config == Config()


class Remembering(Callback):
    def __init__(self) -> None:
        self.words = Vocabulary(["a"])
        self.loaded: Any = None

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = {"deep": [{"words": self.words, "count": 1}]}

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.loaded = checkpoint["mine"]

    def state_dict(self) -> dict[str, Any]:
        return {"words": self.words, "count": 2}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


class RememberingData(RegressionData):
    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("a"), "count": 3}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def resumed(folder: Path, **arguments: Any) -> tuple[Remembering, RememberingData]:
    callback, data = Remembering(), RememberingData()
    trainer = quiet_trainer(folder, callbacks=[callback], max_epochs=2)
    trainer.fit(Regression(), datamodule=data, ckpt_path=folder / "a.ckpt", **arguments)
    return callback, data


def test_what_hooks_put_into_a_checkpoint_comes_back_to_who_trusts_it(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=[Remembering()])
    trainer.fit(Regression(), datamodule=RememberingData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    callback, data = resumed(tmp_path, weights_only=False)
    assert callback.loaded["deep"][0]["words"].words == callback.state["words"].words == ["a"]
    assert callback.loaded["deep"][0]["words"] is callback.state["words"]
    assert data.state == {"path": Path("a"), "count": 3}
    with pytest.warns(UserWarning) as caught:
        callback, data = resumed(tmp_path)
    told = next(str(each.message) for each in caught if "are left out" in str(each.message))
    for text in ("['mine']['deep'][0]['words']", "Vocabulary", "['data']['path']", "weights_only=False"):
        assert text in told
    assert callback.loaded == {"deep": [{"count": 1}]}
    assert (callback.state, data.state) == ({"count": 2}, {"count": 3})


def test_an_object_that_a_hook_misses_is_named(tmp_path: Path) -> None:
    class Reading(Regression):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["loss"] = {"kind": Vocabulary(["a"])}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.words = checkpoint["loss"]["kind"].words

    path = saved(Reading(), tmp_path)
    fit = partial(quiet_trainer(tmp_path, max_epochs=2).fit, Reading(), loader(2), ckpt_path=path)
    for call in (fit, partial(Reading.load_from_checkpoint, path)):
        with warnings.catch_warnings(), pytest.raises(KeyError) as caught:
            warnings.simplefilter("ignore")
            call()
        [note] = [note for note in caught.value.__notes__ if "left out" in note]
        assert "['loss']['kind']" in note and "Vocabulary" in note and "weights_only=False" in note
        call(weights_only=False)


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_other_verbs_take_the_word_of_who_trusts_a_file_too(tmp_path: Path, verb: str) -> None:
    trainer = quiet_trainer(tmp_path, callbacks=[Remembering()])
    trainer.fit(Regression(), datamodule=RememberingData())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    for trusted, words in ((False, ["a"]), (None, None)):
        callback = Remembering()
        run = getattr(quiet_trainer(tmp_path, callbacks=[callback]), verb)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(Regression(), datamodule=RegressionData(), ckpt_path=tmp_path / "a.ckpt", weights_only=trusted)
        found = callback.loaded["deep"][0].get("words")
        assert (None if found is None else found.words) == words


def test_a_fit_that_needs_an_object_is_refused_without_trust(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def state_dict(self) -> Any:
            return {**super().state_dict(), "mode": Mode.FAST}

    class Module(Regression):
        def configure_optimizers(self) -> Any:
            return Odd(self.parameters(), lr=0.1)

    path = saved(Module(), tmp_path)
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    with pytest.raises(CheckpointError, match=r"\['optimizer_states'\]\[0\]\['mode'\].*weights_only=False"):
        trainer.fit(Module(), loader(2), ckpt_path=path)
    trainer.fit(Module(), loader(2), ckpt_path=path, weights_only=False)
    trainer.validate(Module(), loader(2), ckpt_path=path)


def test_nothing_in_a_checkpoint_runs_unless_the_caller_says_so(tmp_path: Path) -> None:
    class Hostile(Regression):
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["evil"] = Runs(tmp_path / "ran")

    path = saved(Hostile(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for weights_only in (None, True):
            Hostile.load_from_checkpoint(path, weights_only=weights_only)
            RegressionData.load_from_checkpoint(path, weights_only=weights_only)
            trainer = quiet_trainer(tmp_path, max_epochs=2)
            trainer.fit(Hostile(), loader(2), ckpt_path=path, weights_only=weights_only)
            trainer.test(Hostile(), loader(2), ckpt_path=path, weights_only=weights_only)
    assert not (tmp_path / "ran").exists()
    Hostile.load_from_checkpoint(path, weights_only=False)
    assert (tmp_path / "ran").exists()


class Numbers(RegressionData):
    def __init__(self, folder: Any, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.given = folder, batch_size

    def state_dict(self) -> dict[str, Any]:
        return {"seen": 7}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def test_a_data_module_is_built_from_a_checkpoint(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    trainer.fit(Regression(), datamodule=Numbers(tmp_path, 8))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    data = Numbers.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    assert data.given == (tmp_path, 8) and data.seen == 7
    with pytest.raises(TypeError, match=r"`folder` must be passed.*in Numbers\.load_from_checkpoint"):
        Numbers.load_from_checkpoint(tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="unknown"):
        assert Numbers.load_from_checkpoint(tmp_path / "a.ckpt", folder="b", unknown=1).given == ("b", 8)
    assert Regression.load_from_checkpoint(tmp_path / "a.ckpt").hparams == Regression().hparams


def test_a_data_module_without_hyperparameters_is_built_too(tmp_path: Path) -> None:
    assert isinstance(RegressionData.load_from_checkpoint(saved(Regression(), tmp_path)), DataModule)


class Grown(Regression):
    """Has a layer more than what was saved."""

    def __init__(self, strict: bool | None = None) -> None:
        super().__init__()
        self.more = nn.Linear(1, 1)
        if strict is not None:
            self.strict_loading = strict


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_weights_need_not_fit_where_the_module_says_so(tmp_path: Path, verb: str) -> None:
    path = saved(Regression(), tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["optimizer_states"][0]["param_groups"][0]["params"] = [0, 1, 2, 3]
    torch.save(checkpoint, path)
    expected = checkpoint["state_dict"]
    for module in (Grown(), Grown(strict=True)):
        with pytest.raises(RuntimeError, match=r"Missing key.*more\.weight"):
            getattr(quiet_trainer(tmp_path, max_epochs=1), verb)(module, loader(2), ckpt_path=path)
    module = Grown(strict=False)
    with pytest.warns(UserWarning, match=r"Only the module has 2 weights.*: more\.bias, more\.weight\."):
        getattr(quiet_trainer(tmp_path, max_epochs=1), verb)(module, loader(2), ckpt_path=path)
    assert_same(weights(module.layer), {name[6:]: value for name, value in expected.items()})


def test_loading_a_module_is_as_strict_as_it_says_unless_told_otherwise(tmp_path: Path) -> None:
    path = saved(Regression(), tmp_path)
    with pytest.raises(RuntimeError, match=r"Missing key.*more\.weight"):
        Grown.load_from_checkpoint(path)
    with pytest.warns(UserWarning, match="Only the module has 2 weights"):
        Grown.load_from_checkpoint(path, strict=False)
    with pytest.raises(ValueError, match=r"`strict` must be the module's `strict_loading` \(True\), but got False"):

        class Strict(Grown):
            def __init__(self) -> None:
                super().__init__(strict=True)

        Strict.load_from_checkpoint(path, strict=False)


def test_a_class_may_say_so_for_all_its_modules(tmp_path: Path) -> None:
    class Lax(Grown):
        strict_loading = False

    path = saved(Regression(), tmp_path)
    with pytest.warns(UserWarning, match="Only the module has 2 weights"):
        Lax.load_from_checkpoint(path)
