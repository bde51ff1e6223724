from __future__ import annotations

from hypothesis import settings

# Sentences of a life cycle are long: fewer of them, and no limit on the time that one takes.
settings.register_profile("camshaft", deadline=None, max_examples=40)
settings.load_profile("camshaft")
