"""What `save_hyperparameters` finds and remembers."""

from __future__ import annotations

import copy
import pickle
import threading
from argparse import Namespace
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from camshaft.trainer.hyperparameters import (
    Hyperparameters,
    HyperparametersMixin,
    accepted_by,
    hyperparameters_for_loggers,
)


class Plain(HyperparametersMixin):
    def __init__(self, width, activation="relu", *rest, scale=1.0, **options):
        self.save_hyperparameters()


def test_all_arguments_are_saved_but_unnamed_ones() -> None:
    saved = Plain(3, "gelu", 7, 8, scale=2.0, bias=False).hparams
    assert saved == {"width": 3, "activation": "gelu", "scale": 2.0, "bias": False}


def test_values_are_items_and_attributes() -> None:
    hparams = Plain(3).hparams
    assert hparams.width == hparams["width"] == 3
    hparams.width = 4
    assert hparams["width"] == 4
    del hparams.width
    with pytest.raises(AttributeError, match=r"`name` must be a saved hyperparameter \(activation, scale\)"):
        _ = hparams.width


def test_without_a_call_there_are_none() -> None:
    class Silent(HyperparametersMixin):
        pass

    assert Silent().hparams == {}


def test_only_names_that_are_asked_for() -> None:
    class Chosen(HyperparametersMixin):
        def __init__(self, a, b, c):
            self.save_hyperparameters("a", "c")

    assert Chosen(1, object(), 3).hparams == {"a": 1, "c": 3}


@pytest.mark.parametrize("ignore", ["network", ["network"], ("network", "other")])
def test_ignored_arguments_may_be_anything(ignore) -> None:
    class Ignoring(HyperparametersMixin):
        def __init__(self, network, width):
            self.save_hyperparameters(ignore=ignore)

    assert Ignoring(nn.Linear(1, 1), 3).hparams == {"width": 3}


def test_a_base_class_saves_for_its_subclasses() -> None:
    class Base(HyperparametersMixin):
        def __init__(self, width, depth=2):
            self.save_hyperparameters()

    class Middle(Base):
        def __init__(self, *args, rate, **kwargs):
            super().__init__(*args, **kwargs)

    class Outer(Middle):
        def __init__(self, width):
            inner = width * 2
            super().__init__(inner, depth=5, rate=0.1)

    assert Outer(3).hparams == {"width": 3, "depth": 5, "rate": 0.1}
    assert accepted_by(Outer, Outer(3).hparams) == {"width": 3}


def test_a_subclass_can_take_back_what_its_base_saved() -> None:
    class Base(HyperparametersMixin):
        def __init__(self, width):
            self.save_hyperparameters()

    class Outer(Base):
        def __init__(self, width, depth):
            super().__init__(width)
            self.save_hyperparameters(ignore="width")

    assert Outer(3, 4).hparams == {"depth": 4}


def test_arguments_of_other_objects_under_construction_are_not_taken() -> None:
    class Owner(HyperparametersMixin):
        def __init__(self, layers):
            self.save_hyperparameters()
            self.part = Plain(layers)

    owner = Owner(5)
    assert owner.hparams == {"layers": 5}
    assert "layers" not in owner.part.hparams


def test_it_may_be_called_from_a_method_that_init_calls() -> None:
    class Indirect(HyperparametersMixin):
        def __init__(self, width):
            self.prepare()

        def prepare(self):
            self.save_hyperparameters()

    assert Indirect(3).hparams == {"width": 3}


def test_a_frame_can_be_given() -> None:
    import inspect

    class Explicit(HyperparametersMixin):
        def __init__(self, width):
            remember(self, inspect.currentframe())

    def remember(instance, frame):
        instance.save_hyperparameters(frame=frame)

    assert Explicit(3).hparams == {"width": 3}


def test_it_works_in_a_module_before_and_after_its_own_init() -> None:
    class Early(HyperparametersMixin, nn.Module):
        def __init__(self, width):
            self.save_hyperparameters()
            super().__init__()

    class Late(HyperparametersMixin, nn.Module):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()

    assert Early(3).hparams == Late(3).hparams == {"width": 3}
    assert Late(3).state_dict() == {}


def test_containers_are_copied() -> None:
    class Containers(HyperparametersMixin):
        def __init__(self, sizes):
            self.save_hyperparameters()

    sizes = {"hidden": [1, (2, None, "a")], "tensor": torch.ones(2)}
    saved = Containers(sizes).hparams
    sizes["hidden"].append(3)
    assert saved["sizes"]["hidden"] == [1, (2, None, "a")]
    nested = Containers(saved).hparams
    assert type(nested["sizes"]) is dict


class Kind(StrEnum):
    A = "a"


@dataclass
class Config:
    width: int


EVERYTHING = {
    "path": Path("a"),
    "kind": Kind.A,
    "function": len,
    "class": nn.ReLU,
    "partial": partial(nn.Linear, 3),
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "dataclass": Config(3),
    "array": np.arange(3),
    "number": np.float64(1.0),
    "set": {1, 2},
    "nested": [1, {"a": (Kind.A,)}],
    "keys": {(1, 2): 3},
    "namespace": Namespace(a=1),
    "generator": torch.Generator(),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_any_value_is_taken_as_it_is(name: str) -> None:
    class Taking(HyperparametersMixin):
        def __init__(self, value):
            self.save_hyperparameters()

    saved = Taking(EVERYTHING[name]).hparams.value
    assert saved is EVERYTHING[name] or (name in ("nested", "keys") and saved == EVERYTHING[name])


def test_a_module_is_taken_with_a_warning_that_its_weights_are_saved_already() -> None:
    network = nn.Linear(1, 1)
    with pytest.warns(UserWarning, match=r"`nn.Module`, whose weights .*ignore=\['width'\]"):
        assert Plain(network).hparams.width is network


@pytest.mark.parametrize("value", [lambda: None, threading.Lock(), [1, {"a": lambda: None}]])
def test_what_cannot_be_pickled_is_taken_with_a_warning_that_names_it(value) -> None:
    with pytest.warns(UserWarning, match=r"hyperparameters of Plain cannot be pickled.*: width \("):
        assert len(Plain(value).hparams) == 3


def test_a_second_call_adds_to_the_first() -> None:
    class Twice(HyperparametersMixin):
        def __init__(self, a, b, cfg):
            self.save_hyperparameters("a")
            self.save_hyperparameters(cfg)
            self.save_hyperparameters({"d": 4})
            self.save_hyperparameters(Namespace(e=5), ignore="a")

    assert Twice(1, 2, {"c": 3}).hparams == {"c": 3, "d": 4, "e": 5}


def test_a_class_adds_to_what_its_base_saved() -> None:
    class Base(HyperparametersMixin):
        def __init__(self, options):
            self.save_hyperparameters(options)

    class Outer(Base):
        def __init__(self, options, depth):
            super().__init__(options)
            self.save_hyperparameters({"depth": depth})

    assert Outer({"width": 3}, 2).hparams == {"width": 3, "depth": 2}


def test_the_latest_call_decides_whether_loggers_are_sent_them() -> None:
    class Silent(HyperparametersMixin):
        def __init__(self, width, loggers):
            for logger in loggers:
                self.save_hyperparameters("width", logger=logger)

    assert hyperparameters_for_loggers(Silent(3, [True])) == {"width": 3}
    assert hyperparameters_for_loggers(Silent(3, [True, False])) == {}
    assert hyperparameters_for_loggers(Silent(3, [False, True])) == {"width": 3}


def test_the_initial_ones_stay_as_they_were() -> None:
    plain = Plain({"sizes": [1]}, Config(3))
    plain.hparams.width["sizes"].append(2)
    plain.hparams.activation.width = 4
    plain.hparams.scale = 9
    plain.hparams_initial.scale = 8
    assert plain.hparams_initial == {"width": {"sizes": [1]}, "activation": Config(3), "scale": 1.0}
    assert hyperparameters_for_loggers(plain) == plain.hparams_initial


def test_a_configuration_stays_one_until_something_is_added() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"lr": 0.1, "twice": "${lr}"})

    class Configured(HyperparametersMixin):
        def __init__(self, config, more):
            self.save_hyperparameters(config)
            if more:
                self.save_hyperparameters("more")

    assert Configured(config, 0).hparams is config
    assert Configured(config, 1).hparams == {"lr": 0.1, "twice": 0.1, "more": 1}


def test_an_unknown_name_is_refused() -> None:
    class Misspelled(HyperparametersMixin):
        def __init__(self, width):
            self.save_hyperparameters("widht")

    with pytest.raises(ValueError, match=r"`names` must be arguments of `__init__` \(width\), but got 'widht'"):
        Misspelled(3)


def test_a_name_must_be_a_string() -> None:
    class Passing(HyperparametersMixin):
        def __init__(self, options):
            self.save_hyperparameters(options)

    with pytest.raises(TypeError, match="`names` must be strings, or one namespace or dictionary, but got 3"):
        Passing(3)


def test_it_must_be_called_during_construction() -> None:
    with pytest.raises(RuntimeError, match="`save_hyperparameters` must be called while `__init__` runs"):
        Plain(3).save_hyperparameters()


def test_copies_and_pickles_keep_them() -> None:
    plain = Plain(3)
    for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert other.hparams == plain.hparams
        assert type(other.hparams) is Hyperparameters
        other.hparams.width = 9
        assert plain.hparams.width == 3


def test_a_constructor_gets_what_it_takes() -> None:
    class Narrow:
        def __init__(self, a, *, b=1): ...

    class Wide:
        def __init__(self, a, **rest): ...

    saved = {"a": 1, "b": 2, "c": 3}
    assert accepted_by(Narrow, saved) == {"a": 1, "b": 2}
    assert accepted_by(Wide, saved) == saved
