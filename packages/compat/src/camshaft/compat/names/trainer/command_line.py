"""`LightningCLI` and its parser, with the trainer, the environment variables and the names of earlier releases."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import Any

import camshaft.compat.names.plugins.fsdp  # so that its classes, and those below, have short names
import camshaft.compat.names.trainer.model_checkpoint
import camshaft.compat.names.trainer.model_summary
import camshaft.compat.names.trainer.rich_progress_bar  # noqa: F401
from camshaft.compat.names.trainer.loggers import LightningLoggerBase
from camshaft.compat.trainer import Trainer
from camshaft.trainer.cli import TrainerArgumentParser, TrainerCLI
from camshaft.trainer.cli.class_types import LoggerClass

LoggerClass.roots = (LightningLoggerBase,)


class LightningArgumentParser(TrainerArgumentParser):
    """`camshaft.trainer.cli.TrainerArgumentParser` with environment variables that begin with PL.

    Args:
        *args: As there.
        env_prefix: Likewise.
        **kwargs: Likewise.
    """

    def __init__(self, *args: Any, env_prefix: str = "PL", **kwargs: Any) -> None:
        super().__init__(*args, env_prefix=env_prefix, **kwargs)

    def add_lightning_class_args(
        self, lightning_class: Any, nested_key: str | None, subclass_mode: bool = False, required: bool = True
    ) -> list[str]:
        """Add the arguments of a class; see `TrainerArgumentParser.add_class_args`."""
        return self.add_class_args(lightning_class, nested_key, subclass_mode, required)

    def instantiate_classes(self, cfg: Any, **kwargs: Any) -> Any:
        """Return a configuration with objects, as an own `instantiate_classes` of a command line asks for them."""
        of_cli = vars(self).get("instantiators", list)
        return self.instantiate(cfg, **{"instantiators": of_cli(), **kwargs})


class LightningCLI(TrainerCLI):
    """`camshaft.trainer.cli.TrainerCLI` with the trainer of `camshaft.compat`.

    Args:
        args, kwargs: As there.
    """

    @wraps(TrainerCLI.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = signature(TrainerCLI.__init__).bind_partial(self, *args, **kwargs).arguments
        own = {"trainer_class": Trainer, "parser_class": LightningArgumentParser}
        options: dict[str, Any] = {name: kind for name, kind in own.items() if name not in given} | kwargs
        super().__init__(*args, **options)

    def setup_parser(self, *args: Any, **kwargs: Any) -> None:
        """Make the parser; see `TrainerCLI.setup_parser`."""
        super().setup_parser(*args, **kwargs)
        vars(self.parser)["instantiators"] = lambda: self._instantiators()
