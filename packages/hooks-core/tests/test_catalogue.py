from __future__ import annotations

import documented_hooks as documents
import pytest

from camshaft.hooks_core import CATALOGUE, Catalogue, HookSpec, Receiver
from camshaft.hooks_core.dispatch.binding import CANONICAL_NAMES
from camshaft.hooks_core.eras.hooks import EARLIER_HOOKS, ERAS, catalogue_of, hooks_of_eras
from camshaft.hooks_core.spec import SKIP_EPOCH

HOOKS = hooks_of_eras()
TABLES = {"0.5": documents.ERA_0_5, "0.8": documents.ERA_0_8, "2.0": documents.ERA_2_0}
NAMES_OF_0_7 = {
    *documents.ERA_0_7_SET_UP,
    *documents.ERA_0_7_TRAINING,
    *documents.ERA_0_7_VALIDATION,
    *documents.ERA_0_7_TEST,
}
RECEIVERS_OF_2_X = {**dict(documents.FIT_2_X), **dict(documents.TEST_2_X), **dict(documents.PREDICT_2_X)}


@pytest.mark.parametrize(
    ("era", "name", "parameters"),
    [(era, name, parameters) for era, table in TABLES.items() for name, parameters in table.items()],
)
def test_hook_has_the_arguments_that_its_document_gives(era: str, name: str, parameters: tuple[str, ...]) -> None:
    spec = HOOKS[name]
    assert era in spec.eras
    assert spec.parameters_in(era) == parameters
    assert Receiver.MODULE in spec.receivers_in(era)


@pytest.mark.parametrize("name", sorted(NAMES_OF_0_7))
def test_hook_of_the_document_of_0_7_is_known_for_its_era(name: str) -> None:
    assert "0.7" in HOOKS[name].eras


@pytest.mark.parametrize(("name", "receivers"), RECEIVERS_OF_2_X.items())
def test_receivers_are_those_of_the_document_of_2_x(name: str, receivers: tuple[str, ...]) -> None:
    expected, _reason = documents.DEVIATIONS_2_X.get(name, (receivers, ""))
    assert HOOKS[name].receivers == expected
    assert "2.x" in HOOKS[name].eras


def test_every_deviation_from_the_document_of_2_x_is_a_real_one() -> None:
    for name, (receivers, reason) in documents.DEVIATIONS_2_X.items():
        assert RECEIVERS_OF_2_X[name] != receivers
        assert reason


@pytest.mark.parametrize("name", ["on_train_batch_start", "on_batch_start"])
def test_minus_one_from_a_batch_start_skips_the_epoch(name: str) -> None:
    assert SKIP_EPOCH == -1
    assert HOOKS[name].can_skip_epoch
    assert [spec.name for spec in HOOKS.values() if spec.can_skip_epoch] == [
        "on_train_batch_start",
        "on_batch_start",
    ]


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ("on_epoch_start", ("on_train_epoch_start",)),
        ("on_epoch_end", ("on_train_epoch_end",)),
        ("on_batch_start", ("on_train_batch_start",)),
        ("on_batch_end", ("on_train_batch_end",)),
        ("on_pre_performance_check", ("on_validation_start",)),
        ("on_post_performance_check", ("on_validation_end", "on_test_end")),
        ("on_keyboard_interrupt", ("on_exception",)),
        ("on_pretrain_routine_start", ("on_fit_start",)),
        ("on_hpc_save", ("on_save_checkpoint",)),
        ("on_train_dataloader", ("train_dataloader",)),
    ],
)
def test_old_name_maps_to_todays_moments(old: str, today: tuple[str, ...]) -> None:
    assert HOOKS[old].today == today
    assert all(HOOKS[name].is_current for name in today)
    assert not HOOKS[old].is_current


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("training_end", "training_step_end"),
        ("validation_end", "validation_epoch_end"),
        ("test_end", "test_epoch_end"),
        ("get_tqdm_dict", "get_progress_bar_dict"),
        ("tng_dataloader", "train_dataloader"),
    ],
)
def test_a_first_name_is_called_for_the_later_one_in_the_same_way(first: str, later: str) -> None:
    assert HOOKS[first].today == (later,)
    assert (HOOKS[first].kind, HOOKS[first].parameters) == (HOOKS[later].kind, HOOKS[later].parameters)


def test_moments_are_hooks_that_are_called_and_only_old_hooks_have_them() -> None:
    for spec in HOOKS.values():
        moments = {*spec.today, *(name for names in spec.moments.values() for name in names)}
        assert not (spec.is_current and moments)
        assert all(not HOOKS[name].today for name in moments)


@pytest.mark.parametrize(("name", "word"), [("on_epoch_start", "start"), ("on_epoch_end", "end")])
def test_epochs_of_evaluation_are_epochs_since_1_2(name: str, word: str) -> None:
    training, all_three = (
        (f"on_train_epoch_{word}",),
        tuple(f"on_{it}_epoch_{word}" for it in ("train", "validation", "test")),
    )
    spec = HOOKS[name]
    assert [spec.moments_in(era) for era in ("0.5", "0.7", "0.8")] == [training] * 3
    assert [spec.moments_in("1.x", version) for version in ("1.0.8", "1.1")] == [training] * 2
    assert [spec.moments_in("1.x", version) for version in (None, "1.x", "1.2.10", "1.7", "1.10")] == [all_three] * 5


@pytest.mark.parametrize(
    "name",
    [
        "configure_model",
        "on_validation_model_zero_grad",
        "on_predict_model_train",
        "configure_ddp",
        "configure_apex",
        "init_ddp_connection",
        "init_optimizers",
        "restore_weights",
        "on_pre_performance_check",
        "on_post_performance_check",
        "validation_end",
    ],
)
def test_1_x_does_not_know_what_came_later_or_went_before(name: str) -> None:
    assert "1.x" not in HOOKS[name].eras


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("training_step", ("batch", "batch_idx", "optimizer_idx", "hiddens")),
        ("on_train_batch_start", ("batch", "batch_idx", "dataloader_idx")),
        ("on_train_batch_end", ("outputs", "batch", "batch_idx", "dataloader_idx")),
        ("on_validation_batch_end", ("outputs", "batch", "batch_idx", "dataloader_idx")),
        ("on_train_epoch_end", ("outputs",)),
        ("on_predict_epoch_end", ("outputs",)),
        ("on_before_optimizer_step", ("optimizer", "optimizer_idx")),
        ("optimizer_zero_grad", ("epoch", "batch_idx", "optimizer", "optimizer_idx")),
        ("backward", ("loss", "optimizer", "optimizer_idx")),
        ("lr_scheduler_step", ("scheduler", "optimizer_idx", "metric")),
        ("on_batch_start", ()),
        ("summarize", ("mode",)),
    ],
)
def test_hooks_of_1_x_have_the_arguments_of_its_releases(name: str, parameters: tuple[str, ...]) -> None:
    assert HOOKS[name].parameters_in("1.x") == parameters


def test_what_only_old_signatures_have_is_known_where_the_caller_does_not_pass_it() -> None:
    for spec in HOOKS.values():
        of_today = {*spec.parameters, *spec.optional, "trainer", "module"}
        old = {name for era in spec.eras if era < "2" for name in (*spec.parameters_in(era), *spec.optional_in(era))}
        assert {CANONICAL_NAMES.get(name, name) for name in old} <= of_today | set(spec.fixed)
        assert not set(spec.fixed) & of_today


def test_the_optimizer_step_of_0_8_gets_mixed_precision_by_name() -> None:
    spec = HOOKS["optimizer_step"]
    assert spec.optional_in("0.8") == ("on_tpu", "using_native_amp", "using_lbfgs")
    assert spec.optional_in("0.7") == spec.optional_in("1.x") == spec.optional_in(None) == ()


def test_tbptt_split_batch_runs_today_although_no_present_era_documents_it() -> None:
    spec = HOOKS["tbptt_split_batch"]
    assert spec.is_current
    assert spec.eras == ("0.7", "0.8", "1.x")
    assert (spec.kind, spec.receivers, spec.parameters) == ("override", (Receiver.MODULE,), ("batch", "split_size"))
    assert [one.name for one in HOOKS.values() if one.is_current and "2.x" not in one.eras] == ["tbptt_split_batch"]


def test_training_step_may_take_the_optimizer_and_the_hidden_state() -> None:
    spec = HOOKS["training_step"]
    assert spec.parameters == ("batch", "batch_idx")
    assert spec.optional == ("optimizer_idx", "hiddens")
    assert spec.parameters_in("0.5") == ("batch", "batch_nb", "optimizer_i", "hiddens")
    assert spec.parameters_in("0.8") == ("batch", "batch_idx", "optimizer_idx", "hiddens")
    assert [one.name for one in HOOKS.values() if one.optional] == ["training_step"]


def test_every_hook_names_its_eras_in_order_and_its_signatures_only_in_them() -> None:
    for spec in HOOKS.values():
        assert spec.eras == tuple(era for era in ERAS if era in spec.eras) != ()
        assert set(spec.signatures) <= set(spec.eras)


def test_receivers_stand_in_the_order_in_which_they_are_called() -> None:
    order = [Receiver.CALLBACK, Receiver.DATA, Receiver.MODULE, Receiver.STRATEGY]
    for spec in HOOKS.values():
        assert list(spec.receivers) == [receiver for receiver in order if receiver in spec.receivers]


def test_in_era_gives_that_eras_hooks() -> None:
    catalogue = catalogue_of("0.5")
    assert set(documents.ERA_0_5) <= set(catalogue)
    assert "on_fit_start" not in catalogue
    assert catalogue.protocol == "0.5"
    assert catalogue["training_step"].parameters == ("batch", "batch_nb", "optimizer_i", "hiddens")
    assert catalogue_of(None) is CATALOGUE


def test_todays_catalogue_holds_hooks_of_today_alone() -> None:
    assert {name for name, spec in HOOKS.items() if spec.is_current} == set(CATALOGUE)
    assert not set(EARLIER_HOOKS) & set(CATALOGUE)


def test_hooks_that_third_parties_registered_are_hooks_of_eras_too() -> None:
    catalogue = CATALOGUE.copy()
    catalogue.register(new_hook())
    assert hooks_of_eras(catalogue)["on_lunch"].eras == ("1.x", "2.0", "2.x")
    assert catalogue.registered == catalogue_of("1.x", catalogue).registered == {"on_lunch"}
    assert "on_lunch" not in catalogue_of("0.8", catalogue)


def test_unknown_era_is_an_error_that_names_the_eras() -> None:
    with pytest.raises(
        ValueError, match=r"`era` must be one of 0\.5, 0\.7, 0\.8, 1\.x, 2\.0, 2\.x, but got '1\.0' \(str\)"
    ):
        catalogue_of("1.0")


def test_received_by_gives_the_hooks_of_a_receiver() -> None:
    names = [spec.name for spec in CATALOGUE.received_by(Receiver.STRATEGY)]
    assert "on_fit_start" in names
    assert "on_train_epoch_end" not in names


def new_hook(name: str = "on_lunch", parameters: tuple[str, ...] = ()) -> HookSpec:
    return HookSpec(name, "At noon.", (Receiver.CALLBACK, Receiver.MODULE), parameters)


def test_registered_hook_is_found_in_its_place_and_copies_are_apart() -> None:
    catalogue = CATALOGUE.copy()
    spec = catalogue.register(new_hook())
    assert catalogue["on_lunch"] is spec
    assert list(catalogue)[-1] == "on_lunch"
    assert "on_lunch" not in CATALOGUE
    assert len(catalogue) == len(CATALOGUE) + 1


def test_registering_the_same_hook_again_changes_nothing() -> None:
    catalogue = Catalogue([new_hook()])
    catalogue.register(new_hook())
    assert len(catalogue) == 1


def test_a_taken_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`spec\.name` must be new to the catalogue, but got 'setup'"):
        CATALOGUE.copy().register(new_hook("setup"))


@pytest.mark.parametrize(
    "spec",
    [
        new_hook("on lunch"),
        new_hook(parameters=("the menu",)),
        HookSpec("on_lunch", "At noon.", (Receiver.MODULE,), optional=("the menu",)),
    ],
)
def test_a_name_that_is_no_identifier_is_an_error(spec: HookSpec) -> None:
    with pytest.raises(
        ValueError, match=r"`spec` must be a hook whose names are Python identifiers, but got '(on lunch|the menu)'"
    ):
        Catalogue([spec])
