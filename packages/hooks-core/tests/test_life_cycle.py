from __future__ import annotations

from typing import Any

import documented_hooks as documents
import pytest

from camshaft.hooks_core import CATALOGUE
from camshaft.hooks_core.eras.hooks import ERAS, catalogue_of, hooks_of_eras
from camshaft.hooks_core.eras.orders import life_cycle, life_cycle_of_version, verbs_of
from camshaft.hooks_core.grammar import after_an_exception, tree
from camshaft.hooks_core.grammar.conditions import Condition
from camshaft.hooks_core.grammar.nodes import Call, Either, If, Maybe, Node, Repeat, Seq, Within, hooks_in, keep, parts
from camshaft.hooks_core.spec import VERBS, ZERO_GRADS, ZeroGrad

PRESENT = (None, "2.0", "2.x")
SINCE_1_X = (*PRESENT, "1.x")


def in_order(node: Node) -> list[str]:
    """The hooks from top to bottom; of alternatives, the first."""
    if isinstance(node, Either):
        return in_order(node.options[0])
    names = [node.hook] if isinstance(node, Call | Within) else []
    if isinstance(node, If) and node.condition is Condition.NO_LOSS and node.holds:
        return names  # what may happen where there is no loss
    if isinstance(node, Repeat) and node.each.startswith("further evaluation"):
        return names  # the same once more
    return names + [name for part in parts(node) for name in in_order(part)]


def order_of(verb: str, era: str | None, among: set[str]) -> list[str]:
    return [name for name in in_order(life_cycle(verb, era)) if name in among]


@pytest.mark.parametrize(
    ("verb", "table"),
    [("fit", documents.FIT_2_X), ("test", documents.TEST_2_X), ("predict", documents.PREDICT_2_X)],
)
def test_era_2_x_has_the_tree_of_its_document_receiver_by_receiver(
    verb: str, table: tuple[tuple[str, tuple[str, ...]], ...]
) -> None:
    among = {name for name, _ in table}
    tree = [(name, tuple(CATALOGUE[name].receivers)) for name in order_of(verb, "2.x", among)]
    documented = [
        (name, documents.DEVIATIONS_2_X[name][0] if name in documents.DEVIATIONS_2_X else receivers)
        for name, receivers in table
    ]
    assert tree == documented


def test_camshafts_own_order_differs_from_the_document_of_2_x_in_two_points() -> None:
    among = {name for name, _ in documents.FIT_2_X}
    own, documented = order_of("fit", None, among), [name for name, _ in documents.FIT_2_X]
    moved = ["on_before_zero_grad", "optimizer_step"]
    assert [name for name in own if name not in moved] == [name for name in documented if name not in moved]
    # zeroing follows the forward pass, as the document of 2.0 has it; the closure runs inside of optimizer_step
    assert own.index("on_before_zero_grad") == own.index("training_step") + 1
    assert own.index("optimizer_step") == own.index("training_step") - 1


def test_era_2_0_zeroes_after_the_forward_pass_and_knows_no_configure_model() -> None:
    names = in_order(life_cycle("fit", "2.0"))
    assert names.index("training_step") < names.index("on_before_zero_grad") < names.index("on_before_backward")
    assert "configure_sharded_model" in names
    assert "configure_model" not in names


def test_own_order_of_fit_from_the_beginning_to_the_first_batch() -> None:
    names = in_order(life_cycle("fit"))
    beginning = [
        "configure_callbacks",
        "prepare_data",
        "setup",
        "configure_sharded_model",
        "configure_model",
        "on_load_checkpoint",
        "train_dataloader",
        "val_dataloader",
        "configure_optimizers",
        "on_fit_start",
        "on_sanity_check_start",
    ]
    assert names[: len(beginning)] == beginning
    batch = names[names.index("on_train_start") : names.index("on_train_epoch_end")]
    assert batch[:26] == [
        "on_train_start",
        "on_save_checkpoint",
        "train_dataloader",
        "val_dataloader",
        "on_train_epoch_start",
        "on_before_batch_transfer",
        "transfer_batch_to_device",
        "on_after_batch_transfer",
        "on_train_batch_start",
        "tbptt_split_batch",
        "optimizer_step",
        "training_step",
        "on_before_zero_grad",
        "optimizer_zero_grad",
        "on_before_backward",
        "backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "configure_gradient_clipping",
        "lr_scheduler_step",
        "on_train_batch_end",
        "on_validation_model_zero_grad",
        "val_dataloader",
        "on_validation_model_eval",
        "on_validation_start",
        "on_validation_epoch_start",
    ]
    assert batch[-4:] == ["on_validation_end", "on_validation_model_train", "lr_scheduler_step", "on_save_checkpoint"]
    assert names[names.index("on_train_epoch_end") :] == [
        "on_train_epoch_end",
        "lr_scheduler_step",
        "on_save_checkpoint",
        "on_train_end",
        "on_save_checkpoint",
        "on_fit_end",
        "teardown",
    ]


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
@pytest.mark.parametrize("era", PRESENT)
def test_a_verb_without_training_sets_up_evaluates_and_tears_down(verb: str, era: str | None) -> None:
    word = {"validate": "validation"}.get(verb, verb)
    names = in_order(life_cycle(verb, era))
    assert names[-11:] == [
        f"on_{word}_epoch_start",
        "on_before_batch_transfer",
        "transfer_batch_to_device",
        "on_after_batch_transfer",
        f"on_{word}_batch_start",
        f"{word}_step",
        f"on_{word}_batch_end",
        f"on_{word}_epoch_end",
        f"on_{word}_end",
        f"on_{word}_model_train",
        "teardown",
    ]
    assert "on_validation_model_zero_grad" not in names
    assert "on_fit_start" not in names


def test_the_training_loop_of_0_7_has_the_order_of_its_document() -> None:
    assert order_of("fit", "0.7", set(documents.ERA_0_7_TRAINING)) == list(documents.ERA_0_7_TRAINING)
    names = in_order(life_cycle("fit", "0.7"))
    # the list says `optimizer.step()` between these two
    assert names.index("on_after_backward") < names.index("optimizer_step") < names.index("on_batch_end")


@pytest.mark.parametrize("era", ["0.7", "0.8"])
def test_set_up_of_0_7_and_0_8_has_the_order_of_the_document_of_0_7(era: str) -> None:
    assert order_of("fit", era, set(documents.ERA_0_7_SET_UP)) == list(documents.ERA_0_7_SET_UP)


def test_evaluation_of_0_7_has_the_order_of_its_document() -> None:
    assert order_of("test", "0.7", set(documents.ERA_0_7_TEST)) == list(documents.ERA_0_7_TEST)
    in_training = order_of("fit", "0.7", set(documents.ERA_0_7_VALIDATION))
    assert in_training[-4:] == list(documents.ERA_0_7_VALIDATION)


@pytest.mark.parametrize("era", ["0.5", "0.8"])
def test_zeroing_follows_the_update_in_0_5_and_0_8(era: str) -> None:
    names = in_order(life_cycle("fit", era))
    assert names.index("on_after_backward") + 1 == names.index("optimizer_step")
    assert names.index("optimizer_step") + 1 == names.index("on_before_zero_grad")


def test_on_train_start_precedes_the_sanity_check_in_0_8_and_follows_it_today() -> None:
    old, today = in_order(life_cycle("fit", "0.8")), in_order(life_cycle("fit"))
    assert old.index("on_fit_start") < old.index("on_train_start") < old.index("on_sanity_check_start")
    assert today.index("on_sanity_check_end") < today.index("on_train_start")


@pytest.mark.parametrize("era", ["0.5", "0.7", "0.8"])
def test_validation_comes_before_the_end_of_an_epoch_in_old_eras(era: str) -> None:
    names = in_order(life_cycle("fit", era))
    last = len(names) - 1 - names[::-1].index("validation_step")
    assert names.index("on_batch_end") < last < names.index("on_epoch_end")


@pytest.mark.parametrize("era", ERAS)
def test_a_life_cycle_calls_only_hooks_of_its_era(era: str) -> None:
    for verb in verbs_of(era):
        for name in hooks_in(life_cycle(verb, era)):
            assert era in hooks_of_eras()[name].eras


@pytest.mark.parametrize("era", ERAS)
def test_every_hook_of_an_era_has_its_place(era: str) -> None:
    placed = {name for verb in verbs_of(era) for name in hooks_in(life_cycle(verb, era))}
    placed |= {*hooks_in(after_an_exception()), "on_keyboard_interrupt"}
    missing = set(catalogue_of(era)) - placed
    assert missing == ({"state_dict", "load_state_dict"} if era in ("1.x", "2.0", "2.x") else set())


def test_a_batch_of_1_x_runs_the_step_of_each_optimizer_inside_its_optimizer_step() -> None:
    among = {
        "on_batch_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_batch_end",
        "tbptt_split_batch",
        *BATCH,
    }
    names = order_of("fit", "1.x", {*among, "training_step_end"})
    first = names.index("on_batch_start")
    assert (
        names[first : first + 14]
        == [
            "on_batch_start",
            "on_train_batch_start",
            "tbptt_split_batch",
            *BATCH[:2],
            "training_step_end",
            *BATCH[2:],
            "on_train_batch_end",
        ][:14]
    )
    (within,) = enclosing(life_cycle("fit", "1.x"))
    assert within.hook == "optimizer_step"
    assert "training_step" in set(hooks_in(within.body))


def test_an_epoch_of_1_x_has_its_old_hooks_around_todays_in_training_and_in_validation() -> None:
    among = {"on_epoch_start", "on_epoch_end", "training_epoch_end", "validation_epoch_end", "on_validation_epoch_end"}
    names = order_of("fit", "1.x", {*among, "on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start"})
    validation = ["on_epoch_start", "on_validation_epoch_start"]
    validation += ["validation_epoch_end", "on_validation_epoch_end", "on_epoch_end"]
    training = ["training_epoch_end", "on_train_epoch_end", "on_epoch_end"]
    # the sanity check, training with validation inside, and validation after the epoch as up to 1.3
    assert names == [*validation, "on_epoch_start", "on_train_epoch_start", *validation, *training, *validation]


def test_1_x_has_two_places_of_zeroing() -> None:
    first, other = life_cycle("fit", "1.x"), life_cycle("fit", "1.x", zero_grad="after_optimizer_step")
    assert first == life_cycle("fit", "1.x", zero_grad="before_backward")
    assert first != other
    with pytest.raises(ValueError, match=r"must be before_backward or after_optimizer_step, as era 1\.x has it"):
        life_cycle("fit", "1.x", zero_grad="before_training_step")


def test_camshafts_own_order_and_that_of_the_present_documents_know_no_old_hooks() -> None:
    for era in PRESENT:
        for verb in VERBS:
            assert set(hooks_in(life_cycle(verb, era))) <= set(CATALOGUE)


@pytest.mark.parametrize("version", ["0.5", "0.8", "1.1", "1.9"])
def test_a_version_runs_all_hooks_of_today_with_the_old_ones_among_them(version: str) -> None:
    for verb in VERBS:
        names = set(hooks_in(life_cycle_of_version(verb, version)))
        assert set(hooks_in(life_cycle(verb))) <= names
    assert {"on_epoch_start", "on_batch_end", "training_epoch_end"} <= set(
        hooks_in(life_cycle_of_version("fit", version))
    )


def test_a_version_departs_from_todays_order_where_it_did() -> None:
    old, later = in_order(life_cycle_of_version("fit", "0.8")), in_order(life_cycle_of_version("fit", "1.5"))
    assert old.index("on_train_start") < old.index("on_sanity_check_start")
    assert later.index("on_sanity_check_end") < later.index("on_train_start")
    assert old.index("on_after_backward") < old.index("optimizer_step") < old.index("on_before_zero_grad")
    assert later.index("optimizer_step") < later.index("training_step") < later.index("on_before_zero_grad")
    assert old.count("on_epoch_start") == 1
    assert later.count("on_epoch_start") == 3


def enclosing(node: Node) -> list[Within]:
    return [node] if isinstance(node, Within) else [found for part in parts(node) for found in enclosing(part)]


def test_under_manual_optimization_the_step_encloses_what_the_module_runs() -> None:
    (within,) = enclosing(life_cycle("fit", optimization="manual"))
    assert within.hook == "training_step"
    assert {"on_before_backward", "backward", "on_before_optimizer_step"} <= set(hooks_in(within.body))


def test_without_optimization_there_is_the_step_alone() -> None:
    names = set(hooks_in(life_cycle("fit", optimization="none")))
    assert "training_step" in names
    assert not names & {"on_before_backward", "on_before_zero_grad", "optimizer_step"}


def test_eras_before_2_have_two_verbs_and_the_others_four() -> None:
    assert [verbs_of(era) for era in ("0.5", "0.7", "0.8")] == [("fit", "test")] * 3
    assert [verbs_of(era) for era in SINCE_1_X] == [VERBS] * 4


@pytest.mark.parametrize("verb", ["validate", "predict"])
def test_a_verb_that_an_era_lacks_is_an_error_that_names_its_verbs(verb: str) -> None:
    with pytest.raises(ValueError, match=rf"`verb` must be one of fit, test for era 0\.7, but got '{verb}' \(str\)"):
        life_cycle(verb, "0.7")


BATCH = [
    "optimizer_step",
    "training_step",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
]


@pytest.mark.parametrize(
    ("zero_grad", "order"),
    [
        (None, BATCH),
        ("before_backward", BATCH),
        ("before_training_step", [BATCH[0], *BATCH[2:4], BATCH[1], *BATCH[4:]]),
        ("after_optimizer_step", [*BATCH[:2], *BATCH[4:], *BATCH[2:4]]),
    ],
)
def test_gradients_are_zeroed_at_the_place_that_was_chosen(zero_grad: Any, order: list[str]) -> None:
    names = [name for name in in_order(life_cycle("fit", zero_grad=zero_grad)) if name in BATCH]
    assert names == order


def test_zeroing_after_the_update_stands_outside_of_what_optimizer_step_encloses() -> None:
    (within,) = enclosing(life_cycle("fit", zero_grad="after_optimizer_step"))
    assert within.hook == "optimizer_step"
    assert "on_before_zero_grad" not in set(hooks_in(within.body))
    (within,) = enclosing(life_cycle("fit", zero_grad="before_training_step"))
    assert "on_before_zero_grad" in set(hooks_in(within.body))


PLACES_OF_ERAS = {
    "0.5": "after_optimizer_step",
    "0.7": "before_backward",
    "0.8": "after_optimizer_step",
    "2.0": "before_backward",
    "2.x": "before_training_step",
}


@pytest.mark.parametrize("zero_grad", ZERO_GRADS)
@pytest.mark.parametrize(("era", "place"), PLACES_OF_ERAS.items())
def test_an_era_has_the_place_of_its_document_and_no_other(era: str, place: str, zero_grad: ZeroGrad) -> None:
    if zero_grad == place:
        assert life_cycle("fit", era, zero_grad=zero_grad) == life_cycle("fit", era)
        return
    with pytest.raises(
        ValueError,
        match=rf"`zero_grad` must be {place}, as era {era} has it, but got '{zero_grad}' \(str\)",
    ):
        life_cycle("fit", era, zero_grad=zero_grad)


@pytest.mark.parametrize(("optimization", "how"), [("manual", "manual"), ("none", "no")])
@pytest.mark.parametrize("zero_grad", ZERO_GRADS)
def test_a_place_of_zeroing_without_automatic_optimization_is_an_error(
    zero_grad: ZeroGrad, optimization: Any, how: str
) -> None:
    with pytest.raises(ValueError, match=rf"`zero_grad` must be None with {how} optimization, .* got '{zero_grad}'"):
        life_cycle("fit", optimization=optimization, zero_grad=zero_grad)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_place_of_zeroing_is_an_error(verb: str) -> None:
    with pytest.raises(ValueError, match=r"`zero_grad` must be one of before_training_step, .*, but got 'never'"):
        life_cycle(verb, zero_grad="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("optimization", ["automatic", "manual", "none"])
def test_every_split_of_a_batch_is_optimized_before_the_schedulers_step(optimization: Any) -> None:
    names = in_order(life_cycle("fit", optimization=optimization))
    assert names.index("on_train_batch_start") + 1 == names.index("tbptt_split_batch") < names.index("training_step")

    def rounds(node: Node) -> list[Repeat]:
        found = [node] if isinstance(node, Repeat) and node.each.startswith("split") else []
        return found + [one for part in parts(node) for one in rounds(part)]

    (splits,) = rounds(life_cycle("fit", optimization=optimization))
    assert splits.at_least == 1
    assert "training_step" in set(hooks_in(splits))
    assert "lr_scheduler_step" not in set(hooks_in(splits))


@pytest.mark.parametrize("era", ["2.0", "2.x"])
def test_the_present_documents_know_no_splits(era: str) -> None:
    assert "split" not in tree("fit", life_cycle("fit", era), catalogue=catalogue_of(era))


def test_checkpoints_may_be_saved_before_the_first_epoch_and_loaders_asked_for_again_in_each() -> None:
    names = in_order(life_cycle("fit"))
    start = names.index("on_train_start")
    assert names[start : start + 5] == [
        "on_train_start",
        "on_save_checkpoint",
        "train_dataloader",
        "val_dataloader",
        "on_train_epoch_start",
    ]


def test_an_unknown_verb_or_era_is_an_error() -> None:
    with pytest.raises(ValueError, match="`verb` must be one of fit, validate, test, predict for camshaft"):
        life_cycle("train")
    with pytest.raises(ValueError, match="`era` must be one of"):
        life_cycle("fit", "1.9")


def test_keep_drops_hooks_and_lets_what_they_enclose_happen() -> None:
    node = Seq("a", Within("b", "c"), Either("a", "d"), Repeat(Call("e"), each="round"), Maybe(Call("a"), when="if so"))
    assert list(hooks_in(keep(node, frozenset("cde")))) == ["c", "d", "e"]
    assert list(hooks_in(keep(node, frozenset("ab")))) == ["a", "b", "a", "a"]


def test_rounds_are_none_or_one_at_least() -> None:
    with pytest.raises(ValueError, match="at_least"):
        Repeat(Call("a"), each="round", at_least=2)
