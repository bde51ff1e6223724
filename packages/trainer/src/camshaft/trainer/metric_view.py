"""What a metric log shows of the values that it has."""

from __future__ import annotations

from torch import Tensor

from camshaft.hooks_core.protocols import Moment
from camshaft.trainer.metric_values import to_floats
from camshaft.trainer.published import Published
from camshaft.trainer.stage_log import LiveValue, StageLog, for_callbacks, for_loggers


class MetricView:
    """The properties of a metric log that callbacks, progress bars and users read."""

    _moment: Moment | None
    _current: StageLog
    _stages: dict[str, StageLog]
    _published: Published

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Every value by name: of training steps, and of epochs, the running one's included at its end."""
        metrics = dict(self._published.to_callbacks)
        for stage in self._stages.values():
            metrics |= for_callbacks(self._live(stage), stage)
        return metrics

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """The latest values that are meant for loggers, by the names that loggers get."""
        metrics = dict(self._published.to_loggers)
        for stage in self._stages.values():
            metrics |= for_loggers(self._live(stage))
        return metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float | int | str]:
        """The latest values that are meant for progress bars, as numbers. Waits for the device."""
        live = [
            live
            for stage in self._stages.values()
            for live in self._live(stage)
            if live.entry.options.prog_bar and live.stands_for(live.name)
        ]
        numbers = to_floats([shown.value for shown in live])
        return self._published.to_progress_bars | {
            shown.name: number for shown, number in zip(live, numbers, strict=True)
        }

    def _live(self, stage: StageLog) -> list[LiveValue]:
        if stage is not self._current or self._moment == "batch":
            return stage.live(with_epoch=False)
        return stage.live(with_epoch=True) if stage.reduced is None else stage.reduced
