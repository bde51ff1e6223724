from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conformance_mutants as mutants
import pytest
from launching import run_ranks
from strategies_in_threads import Exchange, InThreads, OnCPU, Scaling, try_on_ranks

from camshaft.strategies import SingleDeviceStrategy, conformance
from camshaft.strategies.conformance import CHECKS, ConformanceError

OURS_ON_TWO_RANKS = """
import sys
from pathlib import Path
from camshaft.strategies import DDPStrategy, conformance
from camshaft.strategies.sharded import ShardedStrategy
from launching import report

folder, kind, *settings = sys.argv[1:]
for number, arguments in enumerate(map(eval, settings)):
    make = lambda: {"ddp": DDPStrategy, "sharded": ShardedStrategy}[kind](accelerator="cpu", **arguments)
    rtol = 0.05 if "precision" in arguments else 1e-4
    table = conformance.run(make, Path(folder, str(number)), rtol=rtol)
    report((arguments, table.passed, str(table)))
"""

# For each check strategies with one thing wrong, and what is said of them.
MUTANTS: dict[str, list[tuple[type[Any], str]]] = {
    "members_are_those_of_the_protocol": [
        (mutants.StepsWithoutClosure, r"`optimizer_step` must take \(optimizer.*too many positional arguments"),
        (mutants.SaysNothingOfSkips, r"`has_skipped_step` must be a bool, but got None \(NoneType\)"),
    ],
    "processes_are_numbered": [
        (mutants.SharesWithNobody, r"the `data_rank`s of all processes must be \{0\}, but got \{1\}"),
        (mutants.ConnectsOnce, r"it raised RuntimeError: connected already \(placement.py:\d+, in connect\)"),
    ],
    "broadcast_returns_the_value_of_src": [(mutants.BroadcastsTheFirst, r"from rank 1 must be \{'rank': 1")],
    "all_gather_returns_all_values_in_order": [
        (mutants.GathersItsOwnFirst, r"`all_gather` must be \[\{'rank': 0.*, but got \[\{'rank': 1")
    ],
    "reduce_combines_element_by_element": [
        (mutants.ReducesInPlace, r"`reduce` of torch.float32 on cpu by 'mean' must leave its argument as it is"),
        (mutants.ReducesIn32Bits, r"the largest of 64-bit integers must be tensor\(9007199254740993\)"),
        (mutants.AveragesWhatIsSummed, r"`reduce` of torch.int32 on cpu by 'sum' must be"),
    ],
    "barriers_wait_for_all": [(mutants.NeverWaits, "`barrier` must wait for rank 0, but it returned before rank 0")],
    "modules_keep_their_identity_and_move_to_the_device": [
        (mutants.Renames, "the parameters and buffers of a module that was set up must be"),
        (mutants.StaysWhereItWas, "`first.weight` must be on meta, but it is on cpu"),
    ],
    "weights_begin_the_same_on_all_ranks": [
        (
            mutants.EachItsOwnWeights,
            "rank 1: weights after `setup_module` must be the same on all ranks, but frozen",
        )
    ],
    "models_built_in_model_context_train": [
        (mutants.LeavesWeightsEmpty, "weights made in `model_context` must be initialised")
    ],
    "batches_move_to_the_device": [(mutants.ListsTuples, "a moved batch must hold")],
    "values_are_placed_like_parameters": [
        (mutants.PlacesTheValueItself, "the tensor that `place_like` returns must be a copy")
    ],
    "steps_keep_arguments_and_results": [
        (
            mutants.DropsNames,
            r"keyword arguments of `training_step` must be \['dataloader_idx', 'extra'\], but got \[\]",
        ),
        (mutants.ReturnsTheLoss, "the result of `predict_step` must be its dictionary, but got"),
    ],
    "steps_see_the_modes_of_their_caller": [
        (mutants.AlwaysDifferentiates, r"the modes in which `test_step` runs must be .*'grad': False"),
        (mutants.AlwaysTrains, r"the modes in which `test_step` runs must be \{'training': False"),
    ],
    "evaluation_allows_different_numbers_of_batches": [
        (mutants.EvaluatesTogether, "(BrokenBarrierError|did not return within)"),
        (mutants.IdlesWithGradients, r"after evaluation and an update, `first.weight` must be within 0.0001 of one"),
    ],
    "training_equals_one_device": [
        (mutants.AveragesNothing, "weights after four updates must be the same on all ranks, but first.weight"),
        (mutants.SumsGradients, "after four updates, `last.bias` must be within 0.0001 of one device's"),
    ],
    "custom_differentiation_gives_the_same_gradients": [
        (mutants.DifferentiatesItself, "`backward` must call `differentiate` once if it is given, but it did 0 times"),
        (mutants.HidesTheScale, "after an update with a custom `differentiate`, `first.weight` must be within"),
    ],
    "accumulation_equals_one_device": [
        (mutants.ForgetsEarlierGradients, "after windows of 3, 2 and 1 steps, `first.weight` must be within 0.0001"),
        (mutants.NeverSynchronisesAgain, "weights after windows of 3, 2 and 1 steps must be the same on all ranks"),
    ],
    "clipping_by_norm_equals_one_device": [
        (mutants.ClipsNothing, "after two updates clipped by norm, `first.weight` must be within"),
        (mutants.ClipsEachTensor, "after two updates clipped by norm, `first.weight` must be within"),
        (mutants.ClipsTheWholeModule, "after two updates clipped by norm, `last.weight` must be within"),
        (mutants.ClipsWhatIsScaled, "after two updates clipped by norm, `first.weight` must be within"),
    ],
    "clipping_by_value_equals_one_device": [
        (mutants.ClipsNothing, "after two updates clipped by value, `first.weight` must be within"),
        (mutants.ClipsByNormAlone, "after two updates clipped by value, `first.weight` must be within"),
    ],
    "unscaled_gradients_have_their_true_size": [
        (mutants.UnscalesTwice, "gradients after 2 x `unscale_gradients`: `first.weight` must be within"),
        (mutants.NeverUnscalesByItself, "after an update with 0 x `unscale_gradients`, `first.weight` must be within"),
    ],
    "prepared_optimizers_serve_as_the_originals": [
        (mutants.ReversesOptimizers, "`param_groups` must hold the parameters of the original, but they hold others"),
        (mutants.LosesOptimizers, "the number of optimizers that `setup_optimizers` returns must be 2, but got 1"),
        (
            mutants.WrapsOptimizers,
            "a prepared optimizer must have `register_step_post_hook`, but it has none",
        ),
    ],
    "closures_are_evaluated": [
        (mutants.IgnoresClosures, "the number of evaluations of a closure by SGD must be 1, but got 0"),
        (
            mutants.EvaluatesClosuresItself,
            "evaluations of a closure by an optimizer that needs two must be 2, but got 1",
        ),
        (mutants.WrapsOptimizers, "`step` must need a closure where that of the original does, but it needs none"),
    ],
    "step_hooks_run_for_each_update": [
        (mutants.StepsTwice, r"calls of step hooks after one step must be \{'pre': 1, 'post': 1\}, but got \{'pre': 2"),
        (mutants.StepsAnother, r"calls of step hooks after one step must be .*, but got \{'pre': 0, 'post': 0\}"),
    ],
    "skipped_updates_are_reported": [
        (mutants.SkipsInSilence, "calls of step hooks where `has_skipped_step` is False must be 1, but got 0"),
        (mutants.SaysThatItSkips, "weights must stay as they were in a skipped update, but first.weight"),
        (mutants.AlwaysSkips, "`has_skipped_step` must be false after an update, but it is true after 40 attempts"),
        (mutants.SkipsAlone, "`has_skipped_step` after gradients that are not finite on one rank must be the same"),
    ],
    "checkpoints_are_restored_exactly": [
        (mutants.LoadsLists, "plain values of a checkpoint must be"),
        (mutants.SavesOnEachRank, "rank 1: the rank whose plain values are in a checkpoint must be 0, but got 1"),
    ],
    "checkpoints_are_replaced_as_a_whole": [
        (
            mutants.WritesInPlace,
            "a save must replace a previous checkpoint as a whole, but it wrote into the previous files",
        ),
        (mutants.DeletesFirst, "it raised FileNotFoundError: `path` must be an existing checkpoint"),
        (
            mutants.FailsInSilence,
            "a save of an object that cannot be pickled must raise on every rank, but it did not on this one",
        ),
        (mutants.FailsOnOneRank, "rank 1: a save of an object that cannot be pickled must raise on every rank"),
    ],
    "checkpoints_are_snapshots": [
        (mutants.SavesWhenWaitedFor, "a checkpoint must be of the moment of its save, but later zeros are in it")
    ],
    "training_resumes_exactly": [
        (
            mutants.ForgetsOptimizers,
            "training from a checkpoint must end with the weights of training that was not stopped",
        ),
        (mutants.ForgetsWeights, "`load_module_state` must give the weights that were saved, but frozen, version"),
    ],
    "strategy_state_is_restored": [
        (
            mutants.ForgetsWhatItLearned,
            r"after it was loaded must be \{'num_skipped': 1\}, but got \{'num_skipped': 0\}",
        ),
        (mutants.TakesAnyState, "after that of another was loaded must be"),
        (mutants.LearnsTensors, "`state_dict` of a strategy must hold plain values"),
    ],
    "teardown_is_not_collective": [
        (mutants.TearsDownTogether, "(BrokenBarrierError|did not return within)"),
        (mutants.TearsDownWhatIsThere, "it raised AttributeError: .* has no attribute 'module'"),
    ],
    "modules_can_be_reused_after_teardown": [
        (mutants.LivesOnce, "it raised RuntimeError: set up already"),
        (mutants.ForgetsWhenTornDown, "weights must stay as they were trained after `teardown`, but frozen"),
        (mutants.TakesTheModuleAlong, "it raised NotImplementedError: Cannot copy out of meta tensor"),
    ],
    "strategies_follow_each_other": [
        (mutants.LeavesAMark, "weights that a second strategy trains alike must be"),
        (mutants.SharesItsModule, "weights of one strategy while another trains must be"),
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for name in CHECKS for kind in (OnCPU, Scaling)])
def test_a_strategy_of_one_process_passes(kind: type[OnCPU], name: str, tmp_path: Path) -> None:
    CHECKS[name](kind, tmp_path)


@pytest.mark.parametrize("name", CHECKS)
def test_a_strategy_of_two_ranks_passes(name: str, tmp_path: Path) -> None:
    assert try_on_ranks(InThreads, name, tmp_path) == [None, None]


@pytest.mark.parametrize(
    ("name", "mutant", "message"), [(name, *mutant) for name, found in MUTANTS.items() for mutant in found]
)
def test_every_check_finds_what_is_wrong(name: str, mutant: type[Any], message: str, tmp_path: Path) -> None:
    if issubclass(mutant, InThreads):
        errors = try_on_ranks(mutant, name, tmp_path, timeout_seconds=4)
    else:
        with pytest.raises(ConformanceError) as caught:
            CHECKS[name](mutant, tmp_path)
        errors = [caught.value]
    for error in errors:  # every rank says the same
        assert isinstance(error, ConformanceError) and error.check == name
        assert str(error).startswith(f"{name}: the strategy departs from its protocol.\nrank ")
        assert re.search(message, str(error)), str(error)


def test_every_check_has_something_to_find() -> None:
    assert set(MUTANTS) == set(CHECKS)
    used = {mutant for found in MUTANTS.values() for mutant, _ in found}
    defined = {value for value in vars(mutants).values() if isinstance(value, type) and issubclass(value, OnCPU)}
    assert defined - used == {OnCPU, Scaling, InThreads}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"])
@pytest.mark.parametrize("save_asynchronously", [False, True])
def test_the_single_device_passes(precision: str, save_asynchronously: bool, tmp_path: Path) -> None:
    def make() -> SingleDeviceStrategy:
        return SingleDeviceStrategy("cpu", precision=precision, save_asynchronously=save_asynchronously)

    conformance.run(make, tmp_path, rtol=0.05 if "16" in precision else 1e-4).raise_if_failed()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_gpu_passes(precision: str, tmp_path: Path, accelerator: str) -> None:
    def make() -> SingleDeviceStrategy:
        return SingleDeviceStrategy(accelerator, precision=precision)

    conformance.run(make, tmp_path, rtol=0.05 if "16" in precision else 1e-3).raise_if_failed()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ddp", ["{}", "{'precision': '16-mixed', 'save_asynchronously': True}"]),
        ("sharded", ["{}", "{'precision': 'bf16-mixed', 'save_asynchronously': True}"]),
    ],
)
@pytest.mark.processes
def test_strategies_of_two_processes_pass(kind: str, settings: list[str], tmp_path: Path) -> None:
    outcome = run_ranks(OURS_ON_TWO_RANKS, 2, args=[str(tmp_path / "checks"), kind, *settings]).succeeded()
    for tables in outcome.reports:
        assert len(tables) == len(settings)
        for arguments, passed, table in tables:
            assert passed, f"{kind} {arguments}\n{table}"


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_strategy_that_waits_for_ever_is_given_up(released: threading.Event, tmp_path: Path) -> None:
    class Hangs(OnCPU):
        def barrier(self) -> None:
            released.wait()

    where = r"did not return within 0.2 s; it is still at .*test_conformance.py:\d+ barrier"
    with pytest.raises(ConformanceError, match=where) as caught:
        CHECKS["barriers_wait_for_all"](Hangs, tmp_path, timeout_seconds=0.2)
    assert not caught.value.in_step


@pytest.mark.processes
def test_all_ranks_learn_that_one_raised_while_they_wait_for_it(tmp_path: Path) -> None:
    class RaisesOnOneRank(InThreads):
        def all_gather(self, value: Any) -> list[Any]:
            if self.global_rank == 1:
                raise OSError("no connection")
            return super().all_gather(value)

    errors = try_on_ranks(RaisesOnOneRank, "all_gather_returns_all_values_in_order", tmp_path)
    for error in errors:
        assert re.search(r"rank 0: the strategy waits for another rank, where the check failed; .* gather", str(error))
        assert re.search(r"rank 1: it raised OSError: no connection", str(error))
        assert not error.in_step
    assert isinstance(errors[1].__cause__, OSError)


def test_what_comes_after_ranks_are_out_of_step_is_not_run(released: threading.Event, tmp_path: Path) -> None:
    class Hangs(OnCPU):
        def all_gather(self, value: Any) -> list[Any]:
            released.wait()
            return [value]

        def broadcast(self, value: Any, src: int = 0) -> Any:
            return value

    report = conformance.run(Hangs, tmp_path, timeout_seconds=0.2)
    assert not report.passed and report.failed == ("all_gather_returns_all_values_in_order",)
    states = [line.split()[0] for line in str(report).splitlines() if not line.startswith(" ")]
    assert states == ["passed"] * 3 + ["FAILED"] + ["not"] * (len(CHECKS) - 4)


def test_a_run_goes_on_after_a_check_that_failed_everywhere_alike(tmp_path: Path) -> None:
    names = ["clipping_by_norm_equals_one_device", "closures_are_evaluated"]
    report = conformance.run(mutants.ClipsNothing, tmp_path, names=names)
    assert [(name, error is None) for name, error in report.outcomes.items()] == [(names[0], False), (names[1], True)]
    table = str(report)
    assert re.search(rf"^FAILED   {names[0]}  `clip_gradients` by \"norm\" limits the norm", table)
    assert re.search(rf"^passed   {names[1]} {{14}}`optimizer_step` evaluates a closure", table, re.MULTILINE)
    with pytest.raises(AssertionError, match=f"departs from its protocol. Correct .*\nFAILED   {names[0]}"):
        report.raise_if_failed()


def test_a_folder_that_was_used_is_refused(tmp_path: Path) -> None:
    CHECKS["batches_move_to_the_device"](OnCPU, tmp_path)
    with pytest.raises(ConformanceError, match="`directory` must be new for each check"):
        CHECKS["batches_move_to_the_device"](OnCPU, tmp_path)


@pytest.mark.processes
def test_two_ranks_with_the_same_number_are_told(tmp_path: Path) -> None:
    def alike(exchange: Exchange, rank: int) -> InThreads:
        return InThreads(exchange, 0)

    errors = try_on_ranks(alike, "processes_are_numbered", tmp_path, timeout_seconds=1)
    told = "each process must have a `global_rank` of its own"
    assert sum(told in str(error) for error in errors) == 1 and None not in errors


def test_the_name_of_no_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`names` must be names of checks \(members_are.*\['clipping'\]"):
        conformance.run(OnCPU, tmp_path, names=["clipping"])


def test_what_making_a_strategy_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        CHECKS["barriers_wait_for_all"](lambda: 1 / 0, tmp_path)
