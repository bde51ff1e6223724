"""The callback that saves the configuration of a run beside its logs."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from camshaft.callbacks.monitoring import from_rank_zero
from camshaft.hooks_core import Callback
from camshaft.hooks_core.support.messages import must_be
from camshaft.hooks_core.support.remote_files import exists, is_url, join, parent_of, replace_file


class SaveConfigCallback(Callback):
    """Saves the configuration of a run into its log folder, before the first verb begins.

    Override `save_config` to save it elsewhere, too.

    Args:
        parser: The parser of the configuration.
        config: The configuration.
        config_filename: Name of the file.
        overwrite: Whether a file of another run may be replaced.
        multifile: Whether a configuration that was read from several files is saved in as many.
        save_to_log_dir: Whether the file is written; false only where a subclass has `save_config`.

    Attributes:
        already_saved: Whether it has been saved.

    Raises:
        ValueError: If nothing would be saved.
    """

    only_observes = True

    def __init__(
        self,
        parser: Any,
        config: Any,
        config_filename: str = "config.yaml",
        overwrite: bool = False,
        multifile: bool = False,
        save_to_log_dir: bool = True,
    ) -> None:
        if not save_to_log_dir and type(self).save_config is SaveConfigCallback.save_config:
            raise ValueError(
                "`save_to_log_dir=False` only makes sense in a subclass with `save_config`, which saves the "
                f"configuration elsewhere, but got it in {type(self).__name__}. Define that method, or leave it out."
            )
        self.parser, self.config = parser, config
        self.config_filename, self.overwrite, self.multifile = config_filename, overwrite, multifile
        self.save_to_log_dir = save_to_log_dir
        self.already_saved = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Save the configuration once, on the first process. Collective.

        Raises:
            RuntimeError: On every process, if there is such a file and `overwrite` is false.
        """
        if self.already_saved:
            return
        from_rank_zero(trainer.strategy, lambda: self._save(trainer, pl_module, stage))
        self.already_saved = True

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Override it to save the configuration elsewhere, such as with a logger.

        It is called on the first process only, so nothing collective may be called. The text of the configuration is
        `self.parser.dump(self.config, skip_unset=False)`.

        Args:
            trainer: The trainer.
            pl_module: The module.
            stage: The verb.
        """

    def choose_path(self, log_dir: str) -> str:
        """Return the path to write.

        Raises:
            RuntimeError: If there is such a file and `overwrite` is false.
        """
        path = join(log_dir, self.config_filename)
        if exists(path) and not self.overwrite:
            rule = "a new file, to avoid overwriting that of another run"
            action = (
                "Delete it, or pass `save_config_kwargs={'overwrite': True}` or `save_config_callback=None` to the CLI."
            )
            raise RuntimeError(must_be("config_filename", rule, path, type(self).__name__, action))
        return path

    def _save(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.save_to_log_dir:
            path = self.choose_path(trainer.log_dir)
            in_store = is_url(path)
            with TemporaryDirectory() if in_store else nullcontext(os.path.dirname(path)) as folder:
                os.makedirs(folder, exist_ok=True)
                options = {"skip_unset": False, "overwrite": self.overwrite, "multifile": self.multifile}
                self.parser.save(self.config, os.path.join(folder, os.path.basename(path)), **options)
                for file in Path(folder).iterdir() if in_store else ():  # several with `multifile`
                    with replace_file(join(parent_of(path), file.name)) as fresh:
                        fresh.write_bytes(file.read_bytes())
        self.save_config(trainer, pl_module, stage)
