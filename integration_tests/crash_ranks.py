"""A rank of a scene of `crashes` on several ranks.

crash_ranks.py SCENE ROOT record LOG     notes its operations on files
crash_ranks.py SCENE ROOT resume         goes on from what is there, to the end
crash_ranks.py SCENE ROOT count          notes its collectives
crash_ranks.py SCENE ROOT end RANK NUMBER before|after
                                         as "count"; this rank kills itself at its collective of this number
"""

from __future__ import annotations

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
    else:
        is_ending = verb == "end" and os.environ["RANK"] == arguments[0]
        with Collectives(int(arguments[1]), arguments[2]) if is_ending else Collectives() as collectives:
            report(train(scene, root, resume=False), collectives.phases)


if __name__ == "__main__":
    main(*sys.argv[1:])
