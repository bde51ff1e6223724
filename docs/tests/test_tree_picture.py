"""The README's picture shows the life cycle of today."""

from __future__ import annotations

from tree_picture import PICTURE, picture_of_fit


def test_the_picture_in_the_repository_is_drawn_from_the_grammar() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture_of_fit(), "run `python docs/_extensions/tree_picture.py`"
