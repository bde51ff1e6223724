"""Modules in the forms of earlier eras, small enough to compare their weights."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

NUM_FEATURES = 8


class Net(pl.LightningModule):
    """A small regression; what is of an era is in its subclasses."""

    lr = 0.02

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)
        self.seen: list[Any] = []

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.head(self.layer(x)).squeeze(1), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr, eps=1e-2)


class Gan08(Net):
    """Two networks that train in turn in each batch; what each returns is logged."""

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
        x, y = batch
        if optimizer_idx == 0:
            g_loss = (self.head(self.layer(x)) - 1).square().mean()
            return {"loss": g_loss, "log": {"g_loss": g_loss}, "progress_bar": {"g_loss": g_loss}}
        real, fake = self.head(x.tanh()), self.head(self.layer(x).detach())
        d_loss = ((real - y[:, None]).square() + fake.square()).mean()
        return {"loss": d_loss, "log": {"d_loss": d_loss}}

    def configure_optimizers(self) -> Any:
        parts = (self.layer, self.head)
        return [torch.optim.Adam(part.parameters(), lr=self.lr, eps=1e-2) for part in parts], []


class GanOfOwnSteps05(Gan08):
    """The schedule of the document of 0.5: the one every batch, the other every second."""

    def training_step(self, batch: Any, batch_nb: int, optimizer_i: int) -> Any:
        return Gan08.training_step(self, batch, batch_nb, optimizer_i)

    def optimizer_step(
        self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None:
        if optimizer_i == 0 and batch_nb % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if optimizer_i == 1:
            optimizer.step()
            optimizer.zero_grad()


class GanInTurn1x(Gan08):
    """Optimizers whose turns are as long as their frequencies, and nothing else that tells the era."""

    def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Any:
        outputs = Gan08.training_step(self, batch, batch_idx, optimizer_idx)
        self.log_dict(outputs.pop("log"), prog_bar=True)
        self.seen.append(optimizer_idx)
        return outputs["loss"]

    def configure_optimizers(self) -> Any:
        (generator, discriminator), _ = Gan08.configure_optimizers(self)
        return {"optimizer": generator, "frequency": 1}, {"optimizer": discriminator, "frequency": 2}


class GanOfOwnSteps13(GanInTurn1x):
    """A schedule of 1.3 by what `optimizer_step` leaves out, which the batch's `training_step` is then."""

    hook_era = "1.3"

    def configure_optimizers(self) -> Any:
        return Gan08.configure_optimizers(self)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool,
        using_native_amp: bool,
        using_lbfgs: bool,
    ) -> None:
        if optimizer_idx == 1 or batch_idx % 2 == 0:
            optimizer.step(closure=optimizer_closure)


class ManualGan11(Gan08):
    """Both networks by hand, the discriminator first; each backward leaves the other's weights out."""

    @property
    def automatic_optimization(self) -> bool:
        return False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizers = self.optimizers()
        for optimizer_idx in (1, 0):
            loss = Gan08.training_step(self, batch, batch_idx, optimizer_idx)["loss"]
            optimizers[optimizer_idx].zero_grad()
            self.manual_backward(loss, optimizers[optimizer_idx])
            optimizers[optimizer_idx].step()

    def training_epoch_end(self, outputs: Any) -> None:
        self.seen.append(len(outputs))


class Branches14(Net):
    """Some weights are never used, which 1.4 allowed by default."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def training_epoch_end(self, outputs: Any) -> None:
        self.seen.append(len(outputs))


class LanguageModel07(Net):
    """Sequences in splits, with the state handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(NUM_FEATURES // 4, 8, batch_first=True)

    def training_step(self, batch: Any, batch_idx: int, hiddens: Any) -> Any:
        x, y = batch
        self.seen.append((tuple(x.shape), hiddens is None))
        out, hiddens = self.layer(x, hiddens)
        loss = nn.functional.mse_loss(self.head(out).squeeze(2), y)
        return {"loss": loss, "hiddens": hiddens, "log": {"train_loss": loss}}


class Warmup05(Net):
    """The recipe of the document of 0.5."""

    def training_step(self, batch: Any, batch_nb: int) -> Any:
        loss = self.loss(batch)
        return {"loss": loss, "log": {"train_loss": loss}}

    def optimizer_step(
        self, current_epoch: int, batch_nb: int, optimizer: Any, optimizer_i: int, second_order_closure: Any = None
    ) -> None:
        if self.trainer.global_step < 5:
            lr_scale = min(1.0, float(self.trainer.global_step + 1) / 5.0)
            for pg in optimizer.param_groups:
                pg["lr"] = lr_scale * self.lr
        self.seen.append((current_epoch, batch_nb, optimizer.param_groups[0]["lr"]))
        optimizer.step()
        optimizer.zero_grad()


class Warmup07(Net):
    """The same of 0.7, which zeroes gradients by itself."""

    hook_era = "0.7"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return {"loss": loss, "log": {"train_loss": loss}}

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_idx: int, second_order_closure: Any = None
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = min(1.0, (self.trainer.global_step + 1) / 5) * self.lr
        self.seen.append((epoch, batch_idx, optimizer.param_groups[0]["lr"]))
        optimizer.step()


class Lbfgs08(Net):
    """An override that lets the optimizer evaluate the loss again."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return {"loss": loss, "log": {"train_loss": loss}}

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        second_order_closure: Any,
        on_tpu: bool = False,
        using_native_amp: bool = False,
        using_lbfgs: bool = False,
    ) -> None:
        self.seen.append((epoch, batch_idx, using_lbfgs))
        optimizer.step(second_order_closure)

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3, history_size=3)


class Warmup12(Net):
    """The same of 1.2, by the closure, with a moving average of the weights after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_idx: int,
        optimizer_closure: Any,
        on_tpu: bool,
        using_native_amp: bool,
        using_lbfgs: bool,
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = min(1.0, (self.trainer.global_step + 1) / 5) * self.lr
        self.seen.append((epoch, batch_idx, optimizer.param_groups[0]["lr"]))
        optimizer.step(closure=optimizer_closure)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.average.mul_(0.9).add_(0.1 * self.head.bias.detach())


class StepEnd11(Net):
    """Steps whose loss is computed at their end, and hooks that came before and after everything."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"predicted": self.head(self.layer(batch[0])).squeeze(1), "wanted": batch[1]}

    def training_step_end(self, outputs: Any) -> Any:
        loss = nn.functional.mse_loss(outputs["predicted"], outputs["wanted"])
        self.log("train_loss", loss)
        return {"loss": loss}

    def training_epoch_end(self, outputs: Any) -> None:
        self.seen.append(("training_epoch_end", len(outputs), sorted(outputs[0])))

    def on_epoch_start(self) -> None:
        self.seen.append(("on_epoch_start", self.current_epoch))

    def on_epoch_end(self) -> None:
        self.seen.append(("on_epoch_end", self.current_epoch))


class Skipping08(Net):
    """An epoch that every process ends early."""

    def on_batch_start(self, batch: Any) -> Any:
        return -1 if self.trainer.batch_idx == 4 else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.seen.append(batch_idx)
        return {"loss": loss, "log": {"train_loss": loss}}
