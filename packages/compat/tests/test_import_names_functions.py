from __future__ import annotations

import logging
import os
import random
from argparse import Namespace
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_parts import Regression
from hugging_face_parts import Prediction
from hypothesis import given
from hypothesis import strategies as st
from lightning_utilities.core import rank_zero
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from trainer_parts import NO_VALIDATION, loader

from camshaft.compat import Trainer, TrainingModule
from camshaft.compat.names.utilities import functions
from camshaft.compat.names.utilities.functions import (
    EarlierCombinedLoader,
    atomic_save,
    auto_move_data,
    data_loader,
    is_overridden,
    load,
)
from camshaft.compat.names.utilities.types_and_flags import (
    GradClipAlgorithmType,
    LightningEnum,
    LightningOptimizer,
    RunningStage,
    TrainerFn,
)
from camshaft.loops.data.combined_loader import CombinedLoader as OurCombinedLoader

Pair = namedtuple("Pair", ["left", "right"])


# decorators


class Counting(Regression):
    num_made = 0

    @data_loader
    def train_dataloader(self) -> Any:
        self.num_made += 1
        return loader()


def quiet(tmp_path: Path, **arguments: Any) -> Trainer:
    return Trainer(
        logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path, **arguments
    )


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_decorated_loaders_are_made_once(tmp_path: Path) -> None:
    module = Counting()
    assert module.train_dataloader() is module.train_dataloader()
    quiet(tmp_path, max_epochs=1).fit(module)
    quiet(tmp_path, max_epochs=1).fit(module)
    assert module.num_made == 1
    assert Counting().train_dataloader() is not module.train_dataloader()
    assert Counting.train_dataloader.__name__ == "train_dataloader"


@pytest.mark.filterwarnings(NO_VALIDATION)
def test_decorated_loaders_are_made_anew_where_the_trainer_reloads_them(tmp_path: Path) -> None:
    module = Counting()
    quiet(tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(module)
    assert module.num_made == 3


def test_arguments_are_moved_to_the_modules_device() -> None:
    class Net(TrainingModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, device="meta")

        @auto_move_data
        def forward(self, inputs: Any, *, scale: Any) -> Any:
            return inputs[0].device.type, scale.device.type

    assert Net()([torch.zeros(2)], scale=torch.ones(1)) == ("meta", "meta")


# the first process


def test_the_first_process_runs_what_is_for_it_and_knows_its_rank() -> None:
    @functions.rank_zero_only
    def answer(value: int) -> int:
        return value + 1

    assert answer(1) == 2
    assert functions.rank_zero_only.rank == functions.get_rank() == 0
    assert not functions.distributed_available()


def test_messages_of_the_first_process_are_logged_and_warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero, "log", functions.logger)  # an installed Lightning may have another
    with caplog.at_level(logging.DEBUG, logger="pytorch_lightning"):
        functions.rank_zero_info("half %s", "way")
        functions.rank_zero_debug("detail")
    assert [record.getMessage() for record in caplog.records] == ["half way", "detail"]
    with pytest.warns(RuntimeWarning, match="careful"):
        functions.rank_zero_warn("careful", RuntimeWarning)
    with pytest.warns(functions.LightningDeprecationWarning, match="going"):
        functions.rank_zero_deprecation("going")


def test_a_cache_of_warnings_says_each_thing_once(recwarn: pytest.WarningsRecorder) -> None:
    cache = functions.WarningCache()
    for _ in range(2):
        cache.warn("twice")
        cache.deprecation("gone")
        cache.info("said")
    assert [str(warning.message) for warning in recwarn] == ["twice", "gone"]


# seeds


def test_a_seed_is_that_which_is_given_or_the_last_or_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    assert functions.seed_everything("7", workers=True) == 7
    first = (random.random(), torch.rand(1))
    functions.reset_seed()
    assert (random.random(), torch.rand(1)) == first
    assert os.environ["PL_SEED_WORKERS"] == "1"
    assert functions.seed_everything() == 7
    monkeypatch.delenv("PL_GLOBAL_SEED")
    with pytest.warns(UserWarning, match="was given no seed, and took"):
        drawn = functions.seed_everything()
    assert os.environ["PL_GLOBAL_SEED"] == str(drawn)


def test_generators_are_put_back_after_isolation() -> None:
    numpy = pytest.importorskip("numpy")
    states = (random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].copy())
    with functions.isolate_rng():
        random.random(), torch.rand(1), numpy.random.rand()
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (numpy.random.get_state()[1] == states[2]).all()


# collections


def test_a_function_is_applied_to_everything_of_a_type() -> None:
    data = OrderedDict(a=[1, (2.0, "x")], b=Pair(3, None))
    applied = functions.apply_to_collection(data, (int, float), lambda value, by: value * by, 2)
    assert applied == OrderedDict(a=[2, (4.0, "x")], b=Pair(6, None))
    assert type(applied) is OrderedDict and type(applied["b"]) is Pair
    spared = functions.apply_to_collection([1, True], int, str, wrong_dtype=bool)
    assert spared == ["1", True]
    kept = functions.apply_to_collection({"a": 1, "b": [1, "x"]}, int, lambda value: None, include_none=False)
    assert kept == {"b": ["x"]}


def test_tensors_are_detached_and_moved() -> None:
    tensor = torch.ones(1, requires_grad=True)
    detached = functions.recursive_detach({"a": [tensor * 2]}, to_cpu=True)
    assert not detached["a"][0].requires_grad
    assert functions.move_data_to_device([tensor], "meta")[0].device.type == "meta"


@given(
    st.recursive(
        st.dictionaries(st.text("abc", min_size=1), st.integers(), max_size=3),
        lambda inner: st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    )
)
def test_a_flat_dictionary_has_the_leaves_by_their_paths(nested: dict[str, Any]) -> None:
    flat = functions.flatten_dict(nested, delimiter="/")
    for path, leaf in flat.items():
        value: Any = nested
        for key in path.split("/"):
            value = value[key]
        assert value == leaf
    assert functions.flatten_dict(Namespace(**nested)) == flat


def test_loaders_say_whether_they_have_a_length() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    assert functions.has_len(loader()) and not functions.has_iterable_dataset(loader())
    assert not functions.has_len(DataLoader(Stream()))
    assert functions.has_iterable_dataset(DataLoader(Stream()))
    assert not functions.has_len(iter(()))


def test_combined_loaders_end_with_the_shortest_by_default() -> None:
    assert list(EarlierCombinedLoader({"a": range(2), "b": range(3)})) == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]
    assert len(list(EarlierCombinedLoader(loaders=[range(2), range(3)], mode="max_size_cycle"))) == 3
    assert isinstance(OurCombinedLoader([range(1)]), EarlierCombinedLoader)


# files


def test_checkpoints_are_written_and_read(tmp_path: Path) -> None:
    atomic_save({"state_dict": {"w": torch.ones(2)}}, tmp_path / "a.ckpt")
    assert torch.equal(load(tmp_path / "a.ckpt", map_location="cpu")["state_dict"]["w"], torch.ones(2))


def test_nothing_that_a_file_names_is_imported_unless_it_is_trusted(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"state_dict": {}, "evil": Evil()}, tmp_path / "a.ckpt")
    with pytest.raises(Exception, match=r"a\.ckpt"):
        load(tmp_path / "a.ckpt")
    assert not (tmp_path / "made").exists()
    load(tmp_path / "a.ckpt", weights_only=False)
    assert (tmp_path / "made").exists()


# asking


def test_overriding_is_asked_with_the_name_first() -> None:
    assert is_overridden("training_step", Regression())
    assert is_overridden("training_step", model=Regression())
    assert not is_overridden("on_train_start", Regression())
    assert not is_overridden("training_step", None)
    assert not is_overridden("training_step", Counting(), parent=Regression)
    assert is_overridden("train_dataloader", Counting(), parent=Regression)


def test_states_equal_their_values_in_any_case() -> None:
    assert TrainerFn.FITTING == "fit" and RunningStage.SANITY_CHECKING == "SANITY_CHECK"
    assert GradClipAlgorithmType.NORM == "norm" and TrainerFn.FITTING != RunningStage.TRAINING
    assert RunningStage.from_str("Training") is RunningStage.TRAINING
    assert RunningStage.VALIDATING.evaluating and not RunningStage.TRAINING.evaluating
    assert {TrainerFn.FITTING: 1}[TrainerFn.FITTING] == 1 and str(TrainerFn.TESTING) == "TrainerFn.TESTING"

    class Own(LightningEnum):
        A = "a"

    assert Own.from_str("b") is None


@pytest.mark.parametrize(("text", "value"), [("Yes", True), ("off", False), ("1", True), ("maybe", "maybe")])
def test_texts_are_read_as_bools(text: str, value: bool | str) -> None:
    if isinstance(value, bool):
        assert functions.str_to_bool(text) is value
    else:
        with pytest.raises(ValueError, match="`val` must be such as 'yes' or 'off'"):
            functions.str_to_bool(text)


def test_errors_of_memory_are_recognised() -> None:
    assert functions.is_oom_error(torch.OutOfMemoryError("x")) and functions.is_oom_error(
        RuntimeError("CUDA out of memory.")
    )
    assert not functions.is_oom_error(ValueError("out of memory"))
    assert functions.get_model_size_mb(nn.Linear(999, 1000)) == 4.0
    functions.garbage_collection_cuda()


def test_optimizers_stay_themselves_in_place_of_a_wrapper() -> None:
    optimizer: Any = torch.optim.SGD([torch.ones(1)], 0.1)
    assert LightningOptimizer(optimizer) is optimizer and not isinstance(optimizer, LightningOptimizer)
    assert LightningOptimizer.to_lightning_optimizer(optimizer, trainer=object()).optimizer is optimizer
    assert LightningOptimizer._to_lightning_optimizer(optimizer, object(), 0) is optimizer

    class Wrapper(LightningOptimizer):
        """Defined, as in libraries."""

    with pytest.raises(TypeError, match=r"Make it a subclass of the torch\.optim\.Optimizer"):
        Wrapper(optimizer)


# strategies


def test_apply_to_collection_rebuilds_such_containers() -> None:
    doubled = functions.apply_to_collection(Prediction(logits=torch.ones(1)), torch.Tensor, lambda tensor: tensor * 2)
    assert type(doubled) is Prediction and doubled.logits == doubled["logits"] == 2
