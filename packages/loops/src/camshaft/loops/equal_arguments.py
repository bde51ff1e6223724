"""Arguments that processes must share, since they would come to wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.hooks_core.messages import must_be
from camshaft.hooks_core.protocols import Strategy


def check_equal_arguments(arguments: Mapping[str, Any], strategy: Strategy, where: str) -> None:
    """Compare the arguments of all processes, if there are several. Collective.

    Args:
        arguments: This process's, by name: plain values.
        strategy: Connects the processes.
        where: Who was given them, for the error.

    Raises:
        ValueError: On every process, if one was given other arguments than the first.
    """
    if strategy.world_size == 1:
        return
    of_ranks = strategy.all_gather(dict(arguments))
    for rank, of_rank in enumerate(of_ranks):
        for name, expected in of_ranks[0].items():
            if repr(of_rank[name]) != repr(expected):  # a share of 1.0 is not one batch
                rule = f"{expected!r}, as on rank 0"
                action = "Give every process the same arguments."
                raise ValueError(must_be(name, rule, of_rank[name], f"{where} on rank {rank}", action))
