from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from camshaft.compat.eras.evidence import calls_method, logs_by_itself, returns_logs


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


class Returning:
    def literal(self, batch):
        return {"loss": batch, "log": {"loss": batch}}

    def bar(self, batch):
        return {"loss": batch, "progress_bar": {}}

    def by_keyword(self, batch):
        return dict(loss=batch, log={})

    def ordered(self, batch):
        output = OrderedDict({"loss": batch, "log": {}})
        return output

    def annotated(self, batch):
        output: dict[str, Any] = {"loss": batch, "log": {}}
        return output

    def set_later(self, batch):
        output = {"loss": batch}
        if batch:
            output["log"] = {}
        return output

    def by_another(self, batch):
        return self.literal(batch)

    def by_another_in_a_variable(self, batch):
        result = self.literal(batch)
        return result

    @decorated
    def wrapped(self, batch):
        return {"loss": batch, "log": {}}

    def one_of_two(self, batch):
        if batch is None:
            return None
        return {"loss": batch, "log": {}}


class NotReturning:
    def mentions(self, batch):
        mode = "log"
        return {"loss": batch, "mode": mode}

    def looks_up(self, batch):
        return {"loss": batch["log"]}

    def logs(self, batch):
        self.log_dict({"log": batch, "progress_bar": batch})
        return batch

    def plots(self, axis):
        axis.set_yscale("log")
        return {"loss": axis}

    def inner(self, batch):
        def settings():
            return {"log": batch}

        return {"loss": settings()}

    def unused(self, batch):
        settings = {"log": batch}
        return {"loss": len(settings)}

    def calls_but_returns_other(self, batch):
        self.settings()
        return batch

    def settings(self):
        return {"log": 1}

    def round_about(self, batch):
        "log"
        return self.round_again(batch)

    def round_again(self, batch):
        "log"
        return self.round_about(batch)


@pytest.mark.parametrize("name", [name for name in vars(Returning) if not name.startswith("__")])
def test_logs_that_are_returned_are_found(name: str) -> None:
    assert returns_logs(Returning, getattr(Returning, name))


@pytest.mark.parametrize("name", [name for name in vars(NotReturning) if name != "settings" and name[0] != "_"])
def test_the_same_words_elsewhere_are_none(name: str) -> None:
    assert not returns_logs(NotReturning, getattr(NotReturning, name))


def test_without_its_source_the_keys_beside_the_loss_have_to_do() -> None:
    namespace: dict[str, Any] = {}
    exec("def old(self): return {'loss': 1, 'log': 2}\ndef other(self): return {'mode': 'log'}", namespace)
    assert returns_logs(Returning, namespace["old"])
    assert not returns_logs(Returning, namespace["other"])


@pytest.mark.parametrize("method", [len, dict, print])
def test_what_has_no_code_shows_nothing(method: Callable[..., Any]) -> None:
    assert not returns_logs(Returning, method)
    assert not logs_by_itself(method)
    assert not calls_method(method, "zero_grad")


def test_logging_by_itself_is_a_call_of_its_own_log() -> None:
    class Steps:
        def own(self, batch, batch_idx):
            self.log("loss", batch)

        def several(module, batch):
            module.log_dict({})

        def of_torch(self, torch, x):
            return torch.log(x)

        def of_the_logger(self, x):
            self.logger.log(x)

        def as_a_closure(self, x):
            def again():
                return self

            self.log("loss", x)
            return again

    found = {name for name, method in vars(Steps).items() if callable(method) and logs_by_itself(method)}
    assert found == {"own", "several", "as_a_closure"}


def test_a_call_of_a_method_is_found_by_its_name() -> None:
    def zeroes(optimizer):
        optimizer.zero_grad()

    assert calls_method(zeroes, "zero_grad")
    assert not calls_method(zeroes, "step")
