from __future__ import annotations

from torch import nn

from camshaft.loops.evaluation.loops import ModuleModes


def modes(module: nn.Module) -> list[bool]:
    return [submodule.training for submodule in module.modules()]


def test_each_submodule_gets_its_mode_back() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(1).eval()).eval())
    module[1][0].train()
    before = modes(module)
    assert before == [True, True, False, True, False]
    remembered = ModuleModes(module)
    module.eval()
    remembered.restore()
    assert modes(module) == before
    module.train()
    remembered.restore()
    assert modes(module) == before


def test_a_submodule_that_was_added_keeps_its_own_mode() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    remembered = ModuleModes(module)
    module.append(nn.Dropout().eval())
    module[0].eval()
    remembered.restore()
    assert modes(module) == [True, True, False]


def test_a_submodule_that_was_removed_gets_its_mode_back_as_well() -> None:
    module = nn.Sequential(nn.Dropout())
    remembered = ModuleModes(module)
    removed = module[0].eval()
    module[0] = nn.Identity()
    remembered.restore()
    assert removed.training
