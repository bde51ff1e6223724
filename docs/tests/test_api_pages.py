"""The pages of the public names describe what a class has, and keep sentences whole."""

from __future__ import annotations

import pytest
from api_pages import shown_members
from docstring_sentences import join
from sphinx.ext.napoleon import Config, GoogleDocstring
from test_site import SITE, needs_site

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import StrategyDefaults
from camshaft.trainer import Trainer


def test_a_method_is_a_hook_only_of_a_class_that_receives_hooks() -> None:
    assert "train_dataloader" in shown_members(Trainer)
    assert {"backward", "teardown"} <= set(shown_members(StrategyDefaults))
    assert not {"setup", "on_train_batch_end"} & set(shown_members(ModelCheckpoint))


@pytest.mark.parametrize(
    ("what", "doc", "expected"),
    [
        ("property", "Size in MB: 1,000 bytes.\n\nOf all.", ["Size in MB: 1,000 bytes.", "", "Of all."]),
        ("method", "Do it.\n\nReturns:\n    The code: 0, or\n    1.", ["Do it.", ":returns: The code: 0, or 1."]),
        ("method", "Do it.\n\nReturns:\n    The code.", ["Do it.", ":returns: The code."]),
    ],
)
def test_a_sentence_with_a_colon_is_kept_whole(what: str, doc: str, expected: list[str]) -> None:
    lines = GoogleDocstring(doc, Config(napoleon_use_ivar=True), what=what, name="f").lines()
    join(None, what, "f", None, None, lines)
    text = "\n".join(lines).replace("\n          ", " ")
    assert [line for line in text.split("\n") if line] == [line for line in expected if line]


@needs_site
def test_no_page_takes_a_sentence_for_a_type() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in (SITE / "reference" / "api").rglob("*.html")}
    assert pages
    assert [path.name for path, text in pages.items() if "Return type<" in text or ">Type<span" in text] == []
