"""Stopping at the end of an epoch and going on in a new process gives the same bits as not stopping."""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import attrs
import pytest
import torch
from bare_parts import (
    NUM_FEATURES,
    BareTrainer,
    Net,
    Sized,
    adam,
    hooked,
    make_batches,
    same_bits,
    seeded,
    sgd,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from overriding_parts import Data
from resumed_runs import SCHEDULERS, configuring, same_values, without_time
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from camshaft.hooks_core import Callback
from camshaft.hooks_core.check import check
from camshaft.hooks_core.trace import Trace
from camshaft.loops import JointOptimizer, PredictLoop, ValidationLoop

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@attrs.frozen(kw_only=True)
class Training:
    """What a process is started with."""

    num_epochs: int
    num_samples: int
    accumulate: int
    optimizer: str
    scheduler: str | None
    interval: str
    overridden: bool
    own_generators: bool = False


trainings = st.builds(
    Training,
    num_epochs=st.integers(2, 5),
    num_samples=st.integers(2, 9),
    accumulate=st.integers(1, 3),
    optimizer=st.sampled_from(["sgd", "adam"]),
    scheduler=st.none() | st.sampled_from(sorted(SCHEDULERS)),
    interval=st.sampled_from(["step", "epoch"]),
    overridden=st.booleans(),
    own_generators=st.booleans(),
)


class Stateful(Callback):
    """Remembers every number that it drew, saves each epoch, and stops where it is told to."""

    def __init__(self, stops_after: int | None = None) -> None:
        self.stops_after = stops_after
        self.drawn: list[float] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.drawn.append(random.random() + float(torch.rand(())))
        if sys.modules.get("numpy") is not None:
            self.drawn.append(float(sys.modules["numpy"].random.rand()))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(f"epoch {trainer.progress.current_epoch}")
        if trainer.progress.current_epoch == self.stops_after:
            trainer.fit_loop.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.drawn = list(state_dict["drawn"])


class Process:
    """Everything that a new process makes anew: module, loaders, callbacks, loop; it is seeded by its number."""

    def __init__(self, training: Training, seed: int, stops_after: int | None = None) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        if sys.modules.get("numpy") is not None:
            sys.modules["numpy"].random.seed(seed)

        configure = configuring(training.optimizer, training.scheduler, training.interval)
        self.module, self.callback, self.trace = Net(configure, dropout=0.4), Stateful(stops_after), Trace()
        self.data = Data()
        if training.overridden:
            self.module.optimizer_step = lambda epoch, batch_idx, optimizer, closure: optimizer.step(closure)
        for receiver, kind in ((self.callback, "callback"), (self.data, "data"), (self.module, "module")):
            self.trace.record(receiver, kind)
        x = torch.linspace(-1, 1, training.num_samples * NUM_FEATURES).reshape(-1, NUM_FEATURES)
        own = [torch.Generator().manual_seed(seed + n) if training.own_generators else None for n in range(2)]
        dataset = TensorDataset(x, x.sum(1, keepdim=True))
        self.loader = DataLoader(dataset, batch_size=2, shuffle=True, generator=own[0])
        self.val_loader = DataLoader(dataset, batch_size=4, shuffle=True, generator=own[1])
        self.trainer = BareTrainer(
            self.module,
            callbacks=[self.callback],
            data=self.data,
            max_epochs=training.num_epochs,
            accumulate_grad_batches=training.accumulate,
            num_sanity_val_steps=1,
        )

    def fit(self, checkpoint: dict[str, Any] | None = None) -> Process:
        self.trainer.fit(self.loader, self.val_loader, checkpoint)
        check(self.trace, "fit")
        return self

    def calls_from_epoch(self, epoch: int) -> list[str]:
        """The calls from the beginning of an epoch on; epochs are counted from the first that this process ran."""
        lines = [f"{event} {event.arguments}".rstrip() for event in self.trace]
        starts = [idx for idx, line in enumerate(lines) if line == "enter on_train_epoch_start callback:Stateful"]
        return lines[starts[epoch] :]


@settings(max_examples=30, deadline=None)
@given(trainings, st.data())
def test_going_on_after_any_epoch_is_exact(training: Training, data: st.DataObject) -> None:
    whole = Process(training, seed=0).fit()
    epoch = data.draw(st.integers(0, training.num_epochs - 2), label="last epoch before the stop")
    first = Process(training, seed=0, stops_after=epoch).fit()
    assert first.trainer.progress.current_epoch == epoch + 1
    assert same_values(
        without_time(first.trainer.load(f"epoch {epoch}")), without_time(whole.trainer.load(f"epoch {epoch}"))
    )
    second = Process(training, seed=99).fit(first.trainer.load(f"epoch {epoch}"))
    assert same_bits(weights(second.module), weights(whole.module))
    assert second.callback.drawn == whole.callback.drawn
    assert second.trainer.progress.epochs == whole.trainer.progress.epochs
    assert second.trainer.progress.earlier_batches == whole.trainer.progress.earlier_batches
    assert second.calls_from_epoch(0) == whole.calls_from_epoch(epoch + 1)
    last = f"epoch {training.num_epochs - 1}"
    assert same_values(without_time(second.trainer.load(last)), without_time(whole.trainer.load(last)))


def plain_training(**changes: Any) -> Training:
    defaults: dict[str, Any] = {
        "num_epochs": 4, "num_samples": 7, "accumulate": 2, "optimizer": "adam", "scheduler": "step",
        "interval": "step", "overridden": False,
    }  # fmt: skip
    return Training(**{**defaults, **changes})


def test_going_on_several_times_in_a_row_is_exact() -> None:
    training = plain_training()
    whole = Process(training, seed=0).fit()
    checkpoint = None
    for epoch in range(training.num_epochs):
        process = Process(training, seed=epoch, stops_after=epoch).fit(checkpoint)
        checkpoint = process.trainer.load(f"epoch {epoch}")
    assert same_bits(weights(process.module), weights(whole.module))
    assert process.callback.drawn == whole.callback.drawn


def test_a_finished_fit_goes_on_with_a_higher_limit() -> None:
    whole = Process(plain_training(num_epochs=4), seed=0).fit()
    short = Process(plain_training(num_epochs=2), seed=0).fit()
    longer = Process(plain_training(num_epochs=4), seed=5).fit(short.trainer.load("epoch 1"))
    assert same_bits(weights(longer.module), weights(whole.module))


def test_a_checkpoint_of_the_last_epoch_has_nothing_left_to_train() -> None:
    done = Process(plain_training(), seed=0).fit()
    checkpoint = done.trainer.load("epoch 3")
    again = Process(plain_training(), seed=1)
    again.trainer.fit(again.loader, again.val_loader, checkpoint)
    assert same_bits(weights(again.module), weights(done.module))
    assert (again.trainer.global_step, again.trainer.progress.current_epoch) == (done.trainer.global_step, 4)


def test_the_sanity_check_is_not_run_again() -> None:
    first = Process(plain_training(), seed=0, stops_after=0).fit()
    second = Process(plain_training(), seed=0).fit(first.trainer.load("epoch 0"))
    assert "enter on_sanity_check_start callback:Stateful" in first.trace.calls()
    assert "enter on_sanity_check_start callback:Stateful" not in second.trace.calls()


def test_a_data_module_gets_its_memory_back() -> None:
    first = Process(plain_training(), seed=0, stops_after=0)
    first.data.memory = 40
    checkpoint = first.fit().trainer.load("epoch 0")
    second = Process(plain_training(), seed=0).fit(checkpoint)
    assert second.data.memory == checkpoint["data"]["memory"] == 42


@pytest.mark.parametrize("verb", ["fit", "validate"])
def test_states_are_there_when_loaders_and_optimizers_are_made(verb: str) -> None:
    first = Process(plain_training(scheduler=None), seed=0, stops_after=0)
    first.data.memory = 40
    checkpoint = first.fit().trainer.load("epoch 0")
    seen: dict[str, tuple[int, int]] = {}
    again, callback, data = BareTrainer(seeded(), max_epochs=2), Stateful(), Data()

    def note(name: str, result: Any = None) -> Any:
        seen[name] = (len(callback.drawn), data.memory)
        return result

    data.train_dataloader = lambda: note("loader", first.loader)
    data.val_dataloader = lambda: note("loader", Sized(make_batches(1)))
    again.module.configure_optimizers = lambda: note("optimizers", adam(again.module))
    callback.on_fit_start = lambda trainer, module: note("start")
    again.callbacks, again.data = [callback], data
    again.verb(verb, again.fit_loop if verb == "fit" else ValidationLoop(), {}, checkpoint)
    there = (len(checkpoint["callbacks"]["Stateful"]["drawn"]), 42)
    assert seen == dict.fromkeys(["loader", "optimizers", "start"] if verb == "fit" else ["loader"], there)


def save_after(batch_idx: int, weights_only: bool = False) -> dict[str, Any]:
    def ask(trainer: Any, module: Any, outputs: Any, batch: Any, idx: int) -> None:
        if idx == batch_idx:
            trainer.save_checkpoint("file", weights_only)

    trainer = BareTrainer(seeded(), callbacks=[hooked(on_train_batch_end=ask)], max_epochs=1)
    return trainer.fit(Sized(make_batches(4))).load("file")


def test_a_checkpoint_with_other_generators_of_loaders_is_refused() -> None:
    message = r"`generators of the loaders` must be as many as when the state was saved \(0\), but got 1"
    loader = DataLoader(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), generator=torch.Generator())
    with pytest.raises(ValueError, match=message):
        BareTrainer(seeded(), max_epochs=2).fit(loader, checkpoint=save_after(3))


def test_a_checkpoint_of_an_epochs_last_batch_is_one_of_its_end() -> None:
    trainer = BareTrainer(seeded(), max_epochs=2).fit(Sized(make_batches(4)), checkpoint=save_after(3))
    assert trainer.progress.total_batches == 8


def test_a_checkpoint_of_weights_only_is_refused_by_fit_and_taken_by_others() -> None:
    checkpoint = save_after(3, weights_only=True)
    with pytest.raises(ValueError, match=r"`checkpoint` must be a whole one to resume from .missing: optimizer_states"):
        BareTrainer(seeded(), max_epochs=2).fit(Sized(make_batches(4)), checkpoint=checkpoint)
    module = seeded(seed=5)
    BareTrainer(module).verb("validate", ValidationLoop(), Sized(make_batches(1)), checkpoint)
    assert same_bits(weights(module), list(checkpoint["state_dict"].values()))


def test_a_checkpoint_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`checkpoint` must be one with the key 'state_dict', but got .'epoch'."):
        BareTrainer(seeded()).verb("validate", ValidationLoop(), Sized(make_batches(1)), {"epoch": 1})


def test_weights_of_another_module_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Error.s. in loading state_dict"):
        BareTrainer(torch.nn.Sequential(Net())).verb("predict", PredictLoop(), Sized([]), save_after(3))


@pytest.mark.parametrize("what", ["optimizers", "schedulers"])
def test_another_number_of_optimizers_or_schedulers_is_refused(what: str) -> None:
    def configure(module: Any) -> Any:
        optimizer = sgd(module)
        return ([optimizer], [StepLR(optimizer, 1)]) if what == "schedulers" else None

    count = 1 if what == "schedulers" else 0
    message = rf"`number of {what}` must be that of the checkpoint \({1 - count}\), but got {count}"
    with pytest.raises(ValueError, match=message):
        BareTrainer(seeded(Net, configure), max_epochs=2).fit(Sized(make_batches(4)), checkpoint=save_after(3))


def test_callbacks_that_a_checkpoint_does_not_know_start_afresh() -> None:
    callback = Stateful()
    BareTrainer(seeded(), callbacks=[callback], max_epochs=1).fit(Sized(make_batches(4)), checkpoint=save_after(3))
    assert callback.drawn == []


def resumed(configure: Any, checkpoint: dict[str, Any]) -> None:
    BareTrainer(seeded(Net, configure), max_epochs=2).fit(Sized(make_batches(2)), checkpoint=checkpoint)


def saved_with(configure: Any) -> dict[str, Any]:
    callback = hooked(on_train_epoch_end=lambda trainer, module: trainer.save_checkpoint("epoch"))
    trainer = BareTrainer(seeded(Net, configure), callbacks=[callback], max_epochs=1)
    return trainer.fit(Sized(make_batches(2))).load("epoch")


def test_another_class_of_optimizer_is_refused_and_both_are_named() -> None:
    checkpoint = saved_with(sgd)
    message = "`optimizer` must be that of the checkpoint, SGD, but got 'Adam' .str. in configure_optimizers"
    with pytest.raises(ValueError, match=message):
        resumed(adam, checkpoint)
    del checkpoint["fit"]["optimizer_classes"]  # as those of earlier releases
    message = "`optimizer` must be that of the checkpoint, which has the settings dampening, .*, but got 'Adam'"
    with pytest.raises(ValueError, match=message):
        resumed(adam, checkpoint)
    resumed(sgd, checkpoint)


def test_another_class_of_a_part_is_refused_too() -> None:
    def joint(kind: Any) -> Any:
        return lambda module: JointOptimizer(
            kind(module.layer.parameters()), torch.optim.AdamW(module.head.parameters())
        )

    message = r"that of the checkpoint, JointOptimizer\(SGD, AdamW\), but got 'JointOptimizer\(RMSprop, AdamW\)'"
    with pytest.raises(ValueError, match=message):
        resumed(joint(torch.optim.RMSprop), saved_with(joint(torch.optim.SGD)))


def test_another_class_with_the_same_settings_goes_on_with_a_warning() -> None:
    class OwnAdam(torch.optim.Adam):
        """Another name."""

    with pytest.warns(UserWarning, match="The state of Adam in the checkpoint is loaded into OwnAdam"):
        resumed(lambda module: OwnAdam(module.parameters()), saved_with(adam))


def test_an_optimizer_with_its_parameters_in_another_order_goes_on_with_their_states() -> None:
    def reverse(module: Any) -> Any:
        return torch.optim.Adam(list(module.parameters())[::-1])

    whole, stopped = (seeded(Net, lambda module: torch.optim.Adam(module.parameters())) for _ in range(2))
    BareTrainer(whole, max_epochs=2).fit(Sized(make_batches(2)))
    saving = hooked(on_train_epoch_end=lambda trainer, module: trainer.save_checkpoint("epoch"))
    checkpoint = BareTrainer(stopped, callbacks=[saving], max_epochs=1).fit(Sized(make_batches(2))).load("epoch")
    going_on = seeded(Net, reverse)
    BareTrainer(going_on, max_epochs=2).fit(Sized(make_batches(2)), checkpoint=checkpoint)
    assert same_bits(weights(whole), weights(going_on))


def test_the_state_of_other_parameters_is_warned_of() -> None:
    checkpoint = saved_with(lambda module: torch.optim.SGD([module.layer.bias, module.head.weight], lr=0.1))
    with pytest.warns(UserWarning, match=r"of other parameters.* that of 'head\.weight' for 'head\.bias', and so on"):
        resumed(lambda module: torch.optim.SGD([module.layer.bias, module.head.bias], lr=0.1), checkpoint)


@pytest.mark.parametrize("limit", [{"max_steps": 4}, {"max_epochs": 1}, {"should_stop": True}], ids=str)
def test_a_generator_goes_on_from_an_epochs_end_where_training_stopped(limit: dict[str, Any]) -> None:
    def train(checkpoint: Any = None, should_stop: bool = False, **limits: Any) -> BareTrainer:
        def after_last(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.fit_loop.should_stop = should_stop and batch_idx == 3

        torch.manual_seed(3)
        trainer = BareTrainer(Net(), callbacks=[hooked(on_train_batch_end=after_last)], **{"max_epochs": 3, **limits})
        generator = torch.Generator().manual_seed(1)
        data = DataLoader(make_batches(4), shuffle=True, generator=generator)
        return trainer.fit(data, checkpoint=checkpoint)

    stopped = train(**limit)
    stopped.save_checkpoint("stopped")
    assert same_bits(weights(train().module), weights(train(stopped.load("stopped")).module))


class OfOneOrMore(Net):
    """Takes the first part of a batch of several loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(next(iter(batch.values())) if isinstance(batch, dict) else batch, batch_idx)


@pytest.mark.parametrize("names", ["", "a"])
def test_other_train_loaders_are_refused_inside_an_epoch_and_go_on_from_its_end(names: str) -> None:
    def train(names: str, checkpoint: Any = None, **limits: Any) -> BareTrainer:
        trainer = BareTrainer(OfOneOrMore(), **{"max_epochs": 2, **limits})
        data = {name: DataLoader(make_batches(4)) for name in names} or DataLoader(make_batches(4))
        return trainer.fit(data, checkpoint=checkpoint)

    for max_steps in (3, 4):
        stopped = train(names, max_steps=max_steps)
        stopped.save_checkpoint("stopped")
        if max_steps == 4:
            assert train("ab", stopped.load("stopped")).global_step == 8
            continue
        with pytest.raises(ValueError, match="`train loaders` must be as many as in the checkpoint"):
            train("ab", stopped.load("stopped"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_is_refused_inside_an_epoch_by_another_number_of_workers_and_told_at_its_end(num_workers: int) -> None:
    def train(num_workers: int, checkpoint: Any = None, **limits: Any) -> BareTrainer:
        trainer = BareTrainer(Net(), **{"max_epochs": 2, **limits})
        loader = DataLoader(StatefulStream(), batch_size=None, num_workers=num_workers)
        return trainer.fit(loader, checkpoint=checkpoint)

    inside, ended = train(num_workers, max_steps=3), train(num_workers, max_epochs=1)
    for stopped in (inside, ended):
        stopped.save_checkpoint("stopped")
    with pytest.raises(ValueError, match="`train loader` must be read by as many workers"):
        train(1 - num_workers, inside.load("stopped"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(1 - num_workers, ended.load("stopped")).global_step == 8
    told = [one for one in caught if "epochs may differ. Read it by as many workers as before" in str(one.message)]
    assert len(told) == (num_workers == 0)  # workers begin each epoch with the dataset anew


class StatefulStream(IterableDataset[Any]):
    """A stream of four samples that knows its position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Any:
        while self.position < 4:
            self.position += 1
            yield make_batches(4)[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
