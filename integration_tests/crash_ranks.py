"""A rank of a scene of `crashes` on several ranks.

crash_ranks.py SCENE ROOT record LOG     notes its operations on files
crash_ranks.py SCENE ROOT resume         goes on from what is there, to the end
crash_ranks.py SCENE ROOT count          notes its collectives
crash_ranks.py SCENE ROOT end RANK NUMBER before|after
                                         this rank kills itself at its collective of this number
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from crashes.collectives import Collectives
from crashes.recorder import recording
from crashes.scenes import COLLECTIVES, SCENES, train
from launching import report


def main(name: str, root: str, verb: str, *arguments: str) -> None:
    scene = (SCENES | COLLECTIVES)[name]
    if verb == "record":
        with recording(Path(root), Path(*arguments)) as recorder:
            report(train(scene, root, resume=False, mark=recorder.mark))
    elif verb == "resume":
        report(train(scene, root, resume=True))
    elif verb == "count":
        with Collectives() as collectives:
            report(train(scene, root, resume=False), collectives.phases)
    else:
        rank, number, side = arguments
        is_ending = os.environ["RANK"] == rank
        with Collectives((int(number), side)) if is_ending else contextlib.nullcontext():
            report(train(scene, root, resume=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
