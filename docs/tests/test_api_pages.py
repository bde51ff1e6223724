"""The pages of the public names describe what a class has, and take no sentence for a type."""

from __future__ import annotations

from api_pages import shown_members
from test_site import SITE, needs_site

from camshaft.callbacks import ModelCheckpoint
from camshaft.hooks_core import StrategyDefaults
from camshaft.trainer import Trainer


def test_a_method_is_a_hook_only_of_a_class_that_receives_hooks() -> None:
    assert "train_dataloader" in shown_members(Trainer)
    assert {"backward", "teardown"} <= set(shown_members(StrategyDefaults))
    assert not {"setup", "on_train_batch_end"} & set(shown_members(ModelCheckpoint))


@needs_site
def test_no_page_takes_a_sentence_for_a_type() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in (SITE / "reference" / "api").rglob("*.html")}
    assert pages
    assert [path.name for path, text in pages.items() if "Return type<" in text or ">Type<span" in text] == []
