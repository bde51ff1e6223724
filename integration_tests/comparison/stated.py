"""Differences from Lightning 2.6 that no drawn run shows: each names the test that proves what camshaft does."""

from __future__ import annotations

import attrs

from comparison.difference import Topic


@attrs.frozen(kw_only=True)
class Stated:
    """Something that camshaft does on purpose otherwise than Lightning.

    Args:
        name: In a few words.
        topic: The part of the page in which it stands.
        lightning: What Lightning does.
        camshaft: What camshaft does.
        reason: Why.
        write: What a user writes, or may leave as it is.
        proof: The test, as `path::name`.
    """

    name: str
    topic: Topic
    lightning: str
    camshaft: str
    reason: str
    write: str
    proof: str


STATED: tuple[Stated, ...] = ()
