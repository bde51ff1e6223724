"""The kit on the last nightly build of torchtnt, which is two months of its main branch ahead of the release."""

from __future__ import annotations

import attrs
from certify.adapters.on_torchtnt import FRAMEWORK as RELEASE

FRAMEWORK = attrs.evolve(RELEASE, title="torchtnt nightly", distributions=("torchtnt-nightly",))
