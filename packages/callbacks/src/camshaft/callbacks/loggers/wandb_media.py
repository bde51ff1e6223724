"""Tables, texts and images for Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from camshaft.callbacks.errors import InvalidArgumentError

if TYPE_CHECKING:
    from wandb import Run


class WandbMedia:
    """Logs values of W&B's own kinds, over the number of optimizer updates; the base of `WandbLogger`.

    Attributes:
        prefix: Put before the names, with "-" between, unless it is empty.
    """

    STEP_NAME = "trainer/global_step"

    prefix: str

    @property
    def experiment(self) -> Run:
        """The run."""
        raise NotImplementedError

    def log_table(
        self,
        key: str,
        columns: list[str | int] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table.

        Args:
            key: Its name.
            columns: Names of its columns.
            data: Its rows; cells may be text, numbers, and media of wandb.
            dataframe: A pandas `DataFrame` in place of both.
            step: Number of optimizer updates; None means the newest one that was logged.
        """
        import wandb

        self._log({self._prefixed(key): wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step)

    def log_text(
        self,
        key: str,
        columns: list[str | int] | None = None,
        data: list[list[str]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log text, as a table: arguments are those of `log_table`."""
        self.log_table(key, columns, data, dataframe, step)

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **kwargs: Sequence[Any]) -> None:
        """Log images.

        Args:
            key: Their name.
            images: Tensors, arrays, figures, PIL images or paths.
            step: Number of optimizer updates; None means the newest one that was logged.
            **kwargs: Further arguments of `wandb.Image`, such as `caption`: of each a list with an item per image.

        Raises:
            InvalidArgumentError: If such a list has another length, or `images` is no list.
        """
        import wandb

        if not isinstance(images, list | tuple):
            self._refuse("images", "a list of images", images, "Put it into a list.")
        for name, values in kwargs.items():
            if len(values) != len(images):
                self._refuse(name, f"a list of {len(images)}, one for each image", values, "Add what is missing.")
        arguments = [{name: values[idx] for name, values in kwargs.items()} for idx in range(len(images))]
        media = [wandb.Image(image, **each) for image, each in zip(images, arguments, strict=True)]
        self._log({self._prefixed(key): media}, step)

    def _log(self, values: dict[str, Any], step: int | None) -> None:
        self.experiment.log(values if step is None else {**values, self.STEP_NAME: step})

    def _prefixed(self, key: str) -> str:
        return f"{self.prefix}-{key}" if self.prefix else key

    def _refuse(self, field: str, rule: str, value: Any, action: str) -> None:
        raise InvalidArgumentError(field, rule, value, type(self).__name__, action)
