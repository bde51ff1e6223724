"""Strategies with one thing wrong each: every check of the conformance kit has to find those that are meant for it."""

from conformance_mutants.placement import *  # noqa: F403
from conformance_mutants.runs import *  # noqa: F403
from conformance_mutants.training import *  # noqa: F403
