"""What two processes write to loggers: each makes all of them, as a script does.

torchrun --nproc-per-node 2 logger_scenes.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launching import report
from trainer_parts import Regression, loader

from camshaft.callbacks import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from camshaft.trainer import Trainer

DUMPS = "TORCH_FR_DUMP_TEMP_FILE"


class Noting(Regression):
    def on_train_start(self) -> None:
        report("dumps", os.environ[DUMPS])


def main() -> None:
    root = Path(sys.argv[1])
    loggers = [
        MLFlowLogger(save_dir=root / "ml"),
        TensorBoardLogger(root / "tb"),
        WandbLogger(save_dir=root / "wb", offline=True),
        CSVLogger(root / "csv"),
    ]
    trainer = Trainer(
        strategy="ddp",
        devices=2,
        accelerator="cpu",
        default_root_dir=root / "root",
        max_epochs=1,
        logger=loggers,
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    trainer.fit(Noting(), loader(8))
    report("dumps_later", os.environ.get(DUMPS))
    report("log_dir", trainer.log_dir)
    report("facts", [(each.name, each.version, each.log_dir) for each in trainer.loggers])


if __name__ == "__main__":
    main()
