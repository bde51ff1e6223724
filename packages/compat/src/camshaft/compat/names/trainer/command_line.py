"""`LightningCLI` and its parser, with the trainer, the environment variables and the names of earlier releases."""

from __future__ import annotations

from typing import Any

import camshaft.compat.names.plugins.fsdp  # so that its classes, and those below, have short names
import camshaft.compat.names.trainer.model_checkpoint
import camshaft.compat.names.trainer.model_summary
import camshaft.compat.names.trainer.rich_progress_bar  # noqa: F401
from camshaft.compat.names.trainer.loggers import LightningLoggerBase
from camshaft.compat.trainer import Trainer
from camshaft.trainer.cli import SaveConfigCallback, TrainerArgumentParser, TrainerCLI
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
        model_class, datamodule_class, save_config_callback, save_config_kwargs, trainer_class: As there.
        trainer_defaults, seed_everything_default, parser_kwargs, parser_class: Likewise.
        **kwargs: The other arguments.
    """

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = None,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: dict[str, Any] | None = None,
        trainer_class: Any = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: dict[str, Any] | None = None,
        parser_class: type[TrainerArgumentParser] = LightningArgumentParser,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model_class,
            datamodule_class,
            save_config_callback,
            save_config_kwargs,
            trainer_class,
            trainer_defaults,
            seed_everything_default,
            parser_kwargs,
            parser_class,
            *args,
            **kwargs,
        )

    def setup_parser(self, *args: Any, **kwargs: Any) -> None:
        """Make the parser; see `TrainerCLI.setup_parser`."""
        super().setup_parser(*args, **kwargs)
        vars(self.parser)["instantiators"] = lambda: self._instantiators()

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs, each with the arguments that are no options, earlier names included."""
        further = {"fit": "train_dataloader", "validate": "val_dataloaders", "test": "test_dataloaders"}
        return {
            verb: given | ({further[verb]} if verb in further else set())
            for verb, given in TrainerCLI.subcommands().items()
        }
