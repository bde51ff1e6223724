from __future__ import annotations

import pytest
import torch

from camshaft.callbacks.arguments import InvalidArgumentError, MissingMetricError
from camshaft.callbacks.checkpoints.names import NameTemplate

METRICS = {"epoch": 3, "step": 120, "val/loss": torch.tensor(0.12345), "top.5": 0.5}


@pytest.mark.parametrize(
    ("template", "with_names", "without_names"),
    [
        ("{epoch}-{step}", "epoch=3-step=120", "3-120"),
        ("best", "best", "best"),
        ("{epoch:03d}", "epoch=003", "003"),
        ("m-{val/loss:.2f}", "m-val_loss=0.12", "m-0.12"),
        ("{top.5:.1f}", "top.5=0.5", "0.5"),
        ("runs/{step}", "runs/step=120", "runs/120"),
        ("a{{b}}", "a{b}", "a{b}"),
    ],
)
def test_fills_the_places(template: str, with_names: str, without_names: str) -> None:
    assert NameTemplate(template, True, "C").render(METRICS) == with_names
    assert NameTemplate(template, False, "C").render(METRICS) == without_names


def test_slashes_in_the_name_of_a_metric_make_folders_where_they_are_to_stay() -> None:
    assert NameTemplate("a/{val/loss:.1f}", True, "C", slash_char="/").render(METRICS) == "a/val/loss=0.1"


@pytest.mark.parametrize("template", ["{epoch", "{}", "{epoch!r}", "{loss:{width}}", "{loss:.2x}"])
def test_a_bad_template_is_refused_when_it_is_made(template: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`filename` must be .* in ModelCheckpoint\. Write it like"):
        NameTemplate(template, True, "ModelCheckpoint")


def test_a_metric_that_was_not_logged_is_named_with_those_that_were() -> None:
    with pytest.raises(MissingMetricError, match=r"'acc' .* logged so far: 'loss'") as caught:
        NameTemplate("{acc:.2f}", True, "ModelCheckpoint").render({"loss": 1.0})
    assert caught.value.available == ("loss",)
    assert caught.value.field == "filename"


def test_a_fraction_does_not_fit_an_integer_format() -> None:
    with pytest.raises(InvalidArgumentError, match=r"a template whose format in \{top\.5:d\} fits 0\.5"):
        NameTemplate("{top.5:d}", True, "ModelCheckpoint").render(METRICS)
