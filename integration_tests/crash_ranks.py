"""A scene of `crashes` on several ranks: recorded, resumed, or ended at a collective.

crash_ranks.py SCENE ROOT record LOG
crash_ranks.py SCENE ROOT resume
"""

from __future__ import annotations

import sys
from pathlib import Path

from crashes.recorder import recording
from crashes.scenes import SCENES, train
from launching import report


def main(name: str, root: str, verb: str, log: str = "") -> None:
    scene = SCENES[name]
    if verb == "record":
        with recording(Path(root), Path(log)) as recorder:
            report(train(scene, root, resume=False, mark=recorder.mark))
    else:
        report(train(scene, root, resume=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
