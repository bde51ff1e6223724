"""`Trainer(compile=...)`: graphs and breaks under each strategy, equal weights, and what stays as it is."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compile_scenes import BACKEND, Block, CallsNet, Module, made, scenes
from launching import run_ranks
from torch import Tensor, nn
from trainer_parts import NormedRegression, Regression, assert_same, loader, quiet_trainer, weights

from camshaft.hooks_core import Callback
from camshaft.strategies import DDPStrategy, SingleDeviceStrategy
from camshaft.trainer import Trainer

pytestmark = pytest.mark.exhaustive

# graphs, breaks and frames that Dynamo gave up; a graph for training and one for validation
WHOLE = {
    "eager": (0, 0, 0),
    "module": (2, 0, 0),  # one of the whole module
    "net": (6, 0, 0),  # of the net, of a block (all three share it), of the last layer
    "blocks": (2, 0, 0),
    "step": (2, 2, 0),  # its author compiled training_step alone, which logs twice
    "given": (6, 0, 0),
}
SHARDED = WHOLE | {
    "net": (2, 0, 0),  # the sharded blocks, whoever calls them
    "step": None,  # torch's hooks that gather parameters break graphs: it may be compiled, that is all
    "given": None,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "num_ranks"), [("single_device", 1), ("ddp", 2), ("sharded", 2)])
def test_graphs_and_breaks_under_a_strategy(strategy: str, num_ranks: int, tmp_path: Path) -> None:
    if num_ranks == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [scenes(strategy, tmp_path)]
    else:
        outcome = run_ranks(Path(__file__).with_name("compile_scenes.py"), num_ranks, args=[strategy, tmp_path])
        found = [values["scenes"] for values in outcome.succeeded().named]
    for of_rank in found:
        for name, counts in (SHARDED if strategy == "sharded" else WHOLE).items():
            scene = of_rank[name]
            assert_same(scene["weights"], of_rank["eager"]["weights"])
            assert scene["logged"] == of_rank["eager"]["logged"], name
            if counts is None:
                assert scene["graphs"] > 0, name
            else:
                assert (scene["graphs"], scene["breaks"], scene["skipped"]) == counts, name


class Dropping(NormedRegression):
    """Draws random numbers in its graph, and has buffers."""


@pytest.mark.parametrize("max_steps", [3, 6])
def test_a_compiled_run_resumes_to_the_bit_and_its_checkpoints_are_those_of_an_eager_one(
    tmp_path: Path, max_steps: int
) -> None:
    torch.manual_seed(0)
    first = Dropping()
    at_once, resumed, eager = copy.deepcopy(first), copy.deepcopy(first), copy.deepcopy(first)
    path, of_eager = tmp_path / "half.ckpt", tmp_path / "eager.ckpt"
    for module, target in ((first, path), (eager, of_eager)):
        torch.manual_seed(1)
        trainer = quiet_trainer(tmp_path, max_epochs=2, max_steps=max_steps, compile=module is first and BACKEND)
        trainer.fit(module, loader(), loader(1))
        trainer.save_checkpoint(target)
    torch.manual_seed(1)
    quiet_trainer(tmp_path, max_epochs=2, compile=BACKEND).fit(at_once, loader(), loader(1))
    quiet_trainer(tmp_path, max_epochs=2, compile=BACKEND).fit(resumed, loader(), loader(1), ckpt_path=path)
    assert_same(weights(resumed), weights(at_once))
    saved, of_other = (torch.load(one, weights_only=True) for one in (path, of_eager))
    assert list(saved["state_dict"]) == list(of_other["state_dict"]) and saved.keys() == of_other.keys()
    assert_same(weights(Dropping.load_from_checkpoint(path)), weights(first))
    quiet_trainer(tmp_path, max_epochs=2).fit(eager, loader(), loader(1), ckpt_path=path)
    quiet_trainer(tmp_path, max_epochs=2, compile=BACKEND).fit(first, loader(), loader(1), ckpt_path=of_eager)


class Copying(Callback):
    def __init__(self) -> None:
        self.copies: list[Any] = []

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        self.copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.deepcopy(module.net)]
        self.was_compiled = module.net._compiled_call_impl is not None


def test_copies_inside_a_run_are_not_compiled_and_have_their_own_weights(tmp_path: Path) -> None:
    module, callback = made(CallsNet), Copying()
    quiet_trainer(tmp_path, callbacks=callback, compile=BACKEND).fit(module, loader())
    assert callback.was_compiled and module.net._compiled_call_impl is None
    for found in callback.copies:
        assert all(part._compiled_call_impl is None for part in found.modules())
        net = getattr(found, "net", found)
        nn.init.zeros_(net[0].weight)
        nn.init.zeros_(net[0].bias)
        assert float(net(torch.ones(1, 3)).detach().abs().sum()) == 0.0
    assert float(module.net(torch.ones(1, 3)).detach().abs().sum()) > 0.0


def test_what_its_author_compiled_stays_so(tmp_path: Path) -> None:
    module = made(Module)
    module.blocks[0].compile(backend="eager")
    own = module.blocks[0]._compiled_call_impl
    quiet_trainer(tmp_path, compile={"policy": Block, **BACKEND}).fit(module, loader())
    assert module.blocks[0]._compiled_call_impl is own and module.blocks[1]._compiled_call_impl is None


def test_a_second_verb_compiles_nothing_anew(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    trainer, module = quiet_trainer(tmp_path, compile=BACKEND), made(Module)
    counters.clear()
    trainer.fit(module, loader(), loader())
    assert counters["stats"]["unique_graphs"] == 2
    trainer.validate(module, loader(), verbose=False)
    num_graphs = counters["stats"]["unique_graphs"]
    assert num_graphs == 3  # under inference mode
    trainer.validate(module, loader(), verbose=False)
    assert counters["stats"]["unique_graphs"] == num_graphs


class Computing(Regression):
    """Its step computes by itself."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(batch[0] @ self.layer.weight.T, batch[1])


class Bare(Computing):
    """Has no module with parameters, and no forward."""

    forward = nn.Module.forward

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ParameterDict({"weight": torch.ones(1, 3)})


@pytest.mark.parametrize(
    ("kind", "num_batches", "message"),
    [
        (Computing, 12, "`compile` compiled nothing of Computing in 10 training steps"),
        (Computing, 2, "`compile` compiled nothing of Computing in 2 training steps"),
        (Bare, 2, "`compile` compiles nothing: Bare has no forward or submodule with parameters."),
    ],
)
def test_what_compiles_nothing_says_what_to_write(
    tmp_path: Path, kind: type[Computing], num_batches: int, message: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_trainer(tmp_path, compile=BACKEND, max_epochs=1).fit(kind(), loader(num_batches), loader(1))
    found = [str(one.message) for one in caught if "compile" in str(one.message)]
    assert len(found) == 1 and found[0].startswith(message)
    assert "call that in the step: `self(x)` or `self.net(x)`, not `.forward(x)`" in found[0]


@pytest.mark.parametrize("kind", [Module, CallsNet])
def test_what_compiles_something_warns_of_nothing(tmp_path: Path, kind: type[Module]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*compile")
        quiet_trainer(tmp_path, compile=BACKEND, max_epochs=2).fit(made(kind), loader(12), loader(1))


def test_metrics_are_not_compiled(tmp_path: Path) -> None:
    from torchmetrics import MeanMetric

    class Learned(MeanMetric):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1, 1)

    module = made(CallsNet)
    module.metric = Learned()
    seen: list[Any] = []
    module.on_train_start = lambda: seen.extend(
        name for name, part in module.named_modules() if part._compiled_call_impl is not None
    )
    quiet_trainer(tmp_path, compile=BACKEND).fit(module, loader())
    assert seen == ["", "layer", "net", "blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize(
    ("compile", "kind", "message"),
    [
        ("eager", TypeError, "`compile` must be a bool or a dictionary of arguments of torch.compile, but got 'eager'"),
        ({"bakend": "eager"}, TypeError, "Correct it: got an unexpected keyword argument 'bakend'."),
        ({"policy": "Block"}, TypeError, "`compile['policy']` must be a module class"),
        ({"policy": 0}, ValueError, "`compile['policy']` must be at least 1, but got 0 (int) in SingleDeviceStrategy"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(compile: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        Trainer(accelerator="cpu", strategy="single_device", compile=compile)


def test_a_policy_without_blocks_and_an_unknown_backend_are_refused_by_the_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("`compile['policy']` must be classes of modules that the model")):
        quiet_trainer(tmp_path, compile={"policy": nn.Conv2d}).fit(made(Module), loader())
    with pytest.raises(Exception, match="Invalid backend"):
        quiet_trainer(tmp_path, compile={"backend": "none such"}).fit(made(Module), loader())


def test_a_strategy_object_says_itself_what_is_compiled(tmp_path: Path) -> None:
    strategy = SingleDeviceStrategy("cpu", compile=BACKEND)
    assert Trainer(strategy=strategy, compile=BACKEND).strategy.compile == BACKEND
    with pytest.raises(ValueError, match="`compile` must be None or that of the strategy object"):
        Trainer(strategy=strategy, compile=True)
    assert DDPStrategy(accelerator="cpu", compile=True).compilation is not None


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on CPUs, and there is none here")
def test_inductor_trains_to_about_the_same_weights(tmp_path: Path) -> None:
    eager, compiled = made(Module), made(Module)
    quiet_trainer(tmp_path).fit(eager, loader(), loader())
    quiet_trainer(tmp_path, compile=True).fit(compiled, loader(), loader())
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-5)
