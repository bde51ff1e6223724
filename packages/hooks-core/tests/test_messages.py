from __future__ import annotations

from camshaft.hooks_core.messages import must_be


def test_must_be_names_field_rule_value_type_place_and_action() -> None:
    message = must_be("max_epochs", "at least 0", -3, "Trainer", "Pass a larger number.")
    assert message == "`max_epochs` must be at least 0, but got -3 (int) in Trainer. Pass a larger number."
