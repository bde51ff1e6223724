"""What is frozen, what is unfrozen, and in which group of the optimizer it lands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recording_trainer import RecordingTrainer
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR

from camshaft.callbacks.arguments import InvalidArgumentError
from camshaft.callbacks.weights.finetuning import BackboneFinetuning, BaseFinetuning


class Net(nn.Module):
    """A head on a backbone with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.head = nn.Linear(2, 1)


class Unfreezing(BaseFinetuning):
    """One layer after the other."""

    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.backbone, train_bn=False)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch in (1, 2):
            self.unfreeze_and_add_param_group(module.backbone[0 if epoch == 1 else 2], optimizer, initial_denom_lr=4.0)


class Fit:
    """A fit as far as the callback sees it."""

    def __init__(
        self, folder: Path, callback: Any, checkpoint: dict[str, Any] | None = None, *, filters: bool = True
    ) -> None:
        self.trainer: Any = RecordingTrainer(str(folder), callbacks=[callback])
        self.module, self.callback = Net(), callback
        callback.setup(self.trainer, self.module, "fit")
        if checkpoint is not None:
            callback.on_load_checkpoint(self.trainer, self.module, checkpoint)
        parameters = [p for p in self.module.parameters() if p.requires_grad or not filters]
        self.optimizer = SGD(parameters, lr=0.8, momentum=0.9)
        self.trainer.optimizers = [self.optimizer]
        callback.on_fit_start(self.trainer, self.module)
        if checkpoint is not None:
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            callback.load_state_dict(checkpoint["callbacks"][callback.state_key])

    def epochs(self, *epochs: int) -> Fit:
        for epoch in epochs:
            self.trainer.current_epoch = epoch
            self.callback.on_train_epoch_start(self.trainer, self.module)
        return self

    def names(self) -> list[list[str]]:
        by_id = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [[by_id[id(parameter)] for parameter in group["params"]] for group in self.optimizer.param_groups]

    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def checkpoint(self) -> dict[str, Any]:
        path = Path(self.trainer.default_root_dir, "saved.ckpt")
        callbacks = {self.callback.state_key: self.callback.state_dict()}
        torch.save({"callbacks": callbacks, "optimizer": self.optimizer.state_dict()}, path)
        loaded: dict[str, Any] = torch.load(path, weights_only=True)
        return loaded


def trainable(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


HEAD = ["head.weight", "head.bias"]
NORM = ["backbone.1.weight", "backbone.1.bias"]
FIRST, LAST = ["backbone.0.weight", "backbone.0.bias"], ["backbone.2.weight", "backbone.2.bias"]


def test_freezing_leaves_batch_normalisation_alone_if_asked_to() -> None:
    net = Net()
    BaseFinetuning.freeze(net.backbone)
    assert trainable(net) == {*HEAD, *NORM} and net.backbone[1].track_running_stats
    BaseFinetuning.freeze([net.backbone], train_bn=False)
    assert trainable(net) == set(HEAD) and not net.backbone[1].track_running_stats
    BaseFinetuning.make_trainable({"part": net.backbone}.values())
    assert trainable(net) == {*HEAD, *NORM, *FIRST, *LAST} and net.backbone[1].track_running_stats


def test_parameters_are_chosen_by_whether_they_are_trained() -> None:
    net = Net()
    BaseFinetuning.freeze(net.backbone, train_bn=True)
    assert len(list(BaseFinetuning.filter_params(net))) == 4
    assert len(list(BaseFinetuning.filter_params(net, train_bn=False))) == 2
    assert len(list(BaseFinetuning.filter_params(nn.ModuleDict({"a": net.backbone}), requires_grad=False))) == 4


def test_a_module_with_parameters_of_its_own_and_children_is_not_overlooked() -> None:
    net = Net()
    net.register_parameter("scale", nn.Parameter(torch.ones(1)))
    assert net in BaseFinetuning.flatten_modules(net) and net.backbone not in BaseFinetuning.flatten_modules(net)
    BaseFinetuning.freeze(net, train_bn=False)
    assert trainable(net) == set()


def test_layers_are_unfrozen_into_groups_of_their_own(tmp_path: Path) -> None:
    fit = Fit(tmp_path, Unfreezing()).epochs(0)
    assert fit.names() == [HEAD]
    assert fit.epochs(1).names() == [HEAD, FIRST] and fit.rates() == [0.8, 0.2]
    assert fit.epochs(2).names() == [HEAD, FIRST, LAST] and fit.optimizer.param_groups[2]["momentum"] == 0.9
    assert trainable(fit.module) == {*HEAD, *FIRST, *LAST} and not fit.module.backbone[1].track_running_stats


def test_validation_freezes_nothing(tmp_path: Path) -> None:
    callback, net = Unfreezing(), Net()
    trainer: Any = RecordingTrainer(str(tmp_path), callbacks=[callback])
    callback.setup(trainer, net, "validate")
    assert trainable(net) == {*HEAD, *NORM, *FIRST, *LAST}


def test_an_optimizer_of_frozen_parameters_gets_them_only_once_with_a_warning() -> None:
    net = Net()
    BaseFinetuning.freeze(net.backbone)
    optimizer = SGD(net.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="SGD was built with frozen parameters"):
        BaseFinetuning.unfreeze_and_add_param_group(net.backbone, optimizer)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("num_epochs", [1, 2, 3, 4])
def test_a_resumed_fit_has_the_same_groups_and_the_same_frozen_parameters(tmp_path: Path, num_epochs: int) -> None:
    fit = Fit(tmp_path, Unfreezing()).epochs(*range(num_epochs))
    fit.optimizer.param_groups[-1]["weight_decay"] = 0.25
    resumed = Fit(tmp_path, Unfreezing(), fit.checkpoint())
    assert resumed.names() == fit.names() and trainable(resumed.module) == trainable(fit.module)
    assert resumed.optimizer.param_groups[-1]["weight_decay"] == 0.25
    fit.epochs(num_epochs), resumed.epochs(num_epochs)
    assert resumed.names() == fit.names() and resumed.rates() == fit.rates()
    assert resumed.callback.state_dict() == fit.callback.state_dict()


def test_groups_of_other_parameters_are_refused(tmp_path: Path) -> None:
    saved = Fit(tmp_path, Unfreezing()).epochs(1).checkpoint()
    saved["callbacks"]["Unfreezing"]["param_groups"][0][1][0] = "backbone.9.weight"
    with pytest.raises(ValueError, match=r"`optimizer` must be the saved optimizer.*\['backbone.9.weight'\]"):
        Fit(tmp_path, Unfreezing(), saved)


def test_what_a_subclass_must_define_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="freeze_before_training is not implemented"):
        Fit(tmp_path, BaseFinetuning())
    with pytest.raises(NotImplementedError, match="finetune_function is not implemented"):
        BaseFinetuning().finetune_function(None, 0, None)


def test_the_backbones_learning_rate_grows_until_it_reaches_the_heads(tmp_path: Path) -> None:
    seen: list[int] = []

    def factor(epoch: int) -> float:
        seen.append(epoch)
        return 3.0

    fit = Fit(tmp_path, BackboneFinetuning(1, factor)).epochs(0)
    assert fit.names() == [[*NORM, *HEAD]]
    rates = [fit.epochs(epoch).rates()[1] for epoch in range(1, 5)]
    assert rates == pytest.approx([0.08, 0.24, 0.72, 0.8]) and seen == [3, 4, 5]
    assert fit.names() == [[*NORM, *HEAD], [*FIRST, *LAST]]


@pytest.mark.parametrize(
    ("arguments", "rates"),
    [
        ({"backbone_initial_ratio_lr": 0.5, "should_align": False}, [0.4, 0.8, 1.6]),
        ({"backbone_initial_lr": 0.3}, [0.3, 0.6, 0.8]),
        ({"initial_denom_lr": 16.0}, [0.05, 0.1, 0.2]),
    ],
)
def test_the_backbone_begins_as_it_was_told(tmp_path: Path, arguments: dict[str, Any], rates: list[float]) -> None:
    fit = Fit(tmp_path, BackboneFinetuning(0, **arguments))
    assert [fit.epochs(epoch).rates()[1] for epoch in range(3)] == pytest.approx(rates)


def test_batch_normalisation_stays_frozen_if_it_is_not_to_be_trained(tmp_path: Path) -> None:
    fit = Fit(tmp_path, BackboneFinetuning(1, train_bn=False)).epochs(0)
    assert fit.names() == [HEAD]
    assert fit.epochs(1).names() == [HEAD, [*FIRST, *LAST]] and not fit.module.backbone[1].track_running_stats


def test_a_fit_that_begins_after_the_epoch_unfreezes_at_once(tmp_path: Path) -> None:
    assert len(Fit(tmp_path, BackboneFinetuning(1)).epochs(4).names()) == 2


def test_a_resumed_backbone_goes_on_with_its_learning_rate(tmp_path: Path) -> None:
    fit = Fit(tmp_path, BackboneFinetuning(1)).epochs(0, 1, 2)
    resumed = Fit(tmp_path, BackboneFinetuning(1), fit.checkpoint())
    assert resumed.rates() == fit.rates()
    assert resumed.epochs(3).rates() == fit.epochs(3).rates() == pytest.approx([0.8, 0.32])


@pytest.mark.filterwarnings("ignore:SGD was built with frozen parameters")
def test_an_optimizer_of_all_parameters_has_its_last_group_follow_the_backbones_learning_rate(tmp_path: Path) -> None:
    fit = Fit(tmp_path, BackboneFinetuning(1), filters=False).epochs(0)
    assert trainable(fit.module) == {*HEAD, *NORM}
    assert fit.epochs(1).rates() == [0.8] and trainable(fit.module) == {*HEAD, *NORM, *FIRST, *LAST}
    assert fit.epochs(2).rates() == pytest.approx([0.16])
    resumed = Fit(tmp_path, BackboneFinetuning(1), fit.checkpoint(), filters=False)
    assert trainable(resumed.module) == trainable(fit.module)
    assert resumed.epochs(3).rates() == fit.epochs(3).rates() == pytest.approx([0.16])  # it is the first group's


def test_a_scheduler_that_cannot_take_groups_is_fine_where_none_is_added(tmp_path: Path) -> None:
    fit = Fit(tmp_path, BackboneFinetuning(1), filters=False)
    fit.trainer.lr_scheduler_configs = [SimpleNamespace(scheduler=OneCycleLR(fit.optimizer, 0.8, 10))]
    fit.callback.on_fit_start(fit.trainer, fit.module)
    filtered = Fit(tmp_path, BackboneFinetuning(1))
    filtered.trainer.lr_scheduler_configs = [SimpleNamespace(scheduler=OneCycleLR(filtered.optimizer, 0.8, 10))]
    with pytest.raises(ValueError, match="`scheduler` must be a scheduler to which parameter groups can be added"):
        filtered.callback.on_fit_start(filtered.trainer, filtered.module)


def test_learning_rates_are_printed_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Fit(tmp_path, BackboneFinetuning(0, verbose=True, rounding=2)).epochs(0)
    assert capsys.readouterr().out == "BackboneFinetuning, epoch 0: learning rate 0.8, of the backbone 0.08\n"


def test_a_module_that_cannot_be_finetuned_is_refused_at_set_up(tmp_path: Path) -> None:
    callback = BackboneFinetuning()
    trainer: Any = RecordingTrainer(str(tmp_path), callbacks=[callback])
    with pytest.raises(ValueError, match=r"`backbone` must be an nn.Module, but got None .* in Linear at set-up"):
        callback.setup(trainer, nn.Linear(1, 1), "fit")
    net = Net()
    callback.setup(trainer, net, "fit")
    trainer.optimizers = [SGD(net.parameters(), lr=0.1)] * 2
    with pytest.raises(ValueError, match="`optimizers` must be one optimizer, but got 2"):
        callback.on_fit_start(trainer, net)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unfreeze_backbone_at_epoch": -1}, "`unfreeze_backbone_at_epoch` must be 0 or more"),
        ({"backbone_initial_lr": 0.0}, "`backbone_initial_lr` must be more than 0"),
        ({"initial_denom_lr": -1.0}, "`initial_denom_lr` must be more than 0"),
        (
            {"backbone_initial_lr": 0.1, "backbone_initial_ratio_lr": 0.1},
            "None when `backbone_initial_ratio_lr` is given",
        ),
        ({"initial_denom_lr": 5.0, "backbone_initial_lr": 0.1}, "`initial_denom_lr` must be left at its default"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        BackboneFinetuning(**arguments)


def test_one_that_takes_the_index_as_before_2_0_gets_it(tmp_path: Path) -> None:
    class Indexed(Unfreezing):
        seen: list[tuple[int, int]]

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any, opt_idx: int) -> None:  # type: ignore[override]
            self.seen = [*getattr(self, "seen", []), (epoch, opt_idx)]

    callback = Indexed()
    Fit(tmp_path, callback).epochs(0, 1)
    assert callback.seen == [(0, 0), (1, 0)]
