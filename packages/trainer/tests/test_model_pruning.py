"""Pruning in a fit, and going on with its masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainer_parts import NO_VALIDATION, Regression, loader, quiet_trainer

from camshaft.callbacks import ModelCheckpoint, ModelPruning
from camshaft.callbacks.arguments import InvalidArgumentError

pytestmark = pytest.mark.filterwarnings(NO_VALIDATION)


class Wide(Regression):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 0.05)


def pruning(**arguments: Any) -> ModelPruning:
    chosen = {"amount": lambda epoch: 0.3 if epoch in (0, 2) else 0, **arguments}
    return ModelPruning("l1_unstructured", **chosen)


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("names", [["weight"], None])
@pytest.mark.parametrize("ticket", [False, True])
@pytest.mark.parametrize("permanent", [False, True])
def test_a_fit_that_is_resumed_has_the_same_masks(
    tmp_path: Path, permanent: bool, ticket: bool, names: list[str] | None
) -> None:
    arguments = {
        "make_pruning_permanent": permanent,
        "use_lottery_ticket_hypothesis": ticket,
        "parameter_names": names,
    }
    whole, resumed = Wide(), Wide()
    with torch.no_grad():
        resumed.layer[0].weight.add_(1.0)  # what the checkpoint brings instead
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1)
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[pruning(**arguments), saving], enable_checkpointing=True)
    trainer.fit(whole, loader())
    first = min(tmp_path.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    saved = torch.load(first, weights_only=True)["state_dict"]
    assert ("layer.0.weight_mask" in saved) != permanent
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[pruning(**arguments)])
    with pytest.warns(UserWarning, match="callbacks that this run does not have: ModelCheckpoint"):
        trainer.fit(resumed, loader(), ckpt_path=first)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(resumed)[name], value, rtol=0, atol=0)
    assert bool((resumed.layer[0].weight == 0).any())
    quiet_trainer(tmp_path, callbacks=pruning(**arguments)).validate(Wide(), loader(), ckpt_path=first)


def test_it_prints_how_much_is_pruned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Wide()
    callback = pruning(parameters_to_prune=[(module.layer[0], "weight")], amount=0.5, verbose=2)
    quiet_trainer(tmp_path, max_epochs=1, callbacks=callback).fit(module, loader())
    printed = capsys.readouterr().out
    assert "Applied `L1Unstructured`. Pruned: 0/24 (0.00%) -> 12/24 (50.00%)" in printed
    assert "to `Linear(in_features=3, out_features=8, bias=True).weight` with amount=0.5" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pruning_fn": "l2"}, "`pruning_fn` must be 'l1_unstructured', .* but got 'l2'"),
        ({"parameter_names": ["gamma"]}, "`parameter_names` must be 'weight' or 'bias', but got 'gamma'"),
        ({"pruning_fn": "random_structured"}, "`pruning_dim` must be given for 'random_structured'"),
        ({"pruning_fn": "ln_structured", "pruning_dim": 0}, "`pruning_norm` must be given for 'ln_structured'"),
        (
            {"pruning_fn": "random_structured", "pruning_dim": 0},
            "`use_global_unstructured` must be false for RandomStructured, which is structured",
        ),
        (
            {"pruning_fn": nn.utils.prune.Identity, "use_global_unstructured": False},
            "`use_global_unstructured` must be True for a custom pruning method",
        ),
        ({"amount": "half"}, "`amount` must be an int, a float or a function of the epoch"),
        ({"verbose": 3}, "`verbose` must be 0, 1 or 2"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ModelPruning(**{"pruning_fn": "l1_unstructured", **arguments})


def test_parameters_of_another_module_are_refused(tmp_path: Path) -> None:
    callback = pruning(parameters_to_prune=[(nn.Linear(1, 1), "weight")])
    with pytest.raises(InvalidArgumentError, match="`parameters_to_prune` must be pairs of a submodule"):
        quiet_trainer(tmp_path, callbacks=callback).fit(Wide(), loader())
